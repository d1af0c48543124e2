// c = op(a) op(b) + bias, or c += op(a) op(b).
//
// The output is cut into tiles that depend on the shape only (gemm_plan.h); each tile is computed by one thread with a
// single-threaded oneDNN matmul, K chunk by K chunk in order, in fp32, and rounded once on store. Left to itself oneDNN
// splits K over the threads for some shapes, and the sum would depend on their number.
//
// fp32, and bf16 where the CPU is fast at it, are multiplied in place. fp16 (oneDNN 2.6 has no such matmul) and other
// bf16 are widened into dense fp32 tiles, which costs a few per cent of the multiplication.
#include "core/cpu/gemm.h"

#include "core/cpu/gemm_job.h"
#include "core/cpu/gemm_tile.h"
#include "core/cpu/gemm_tile_io.h"
#include "core/cpu/scratch.h"

namespace mantissa::cpu {
namespace {

struct Extents {
  int64_t m, n, k;
};

Extents check_args(const GemmArgs& args) {
  MANTISSA_CHECK(args.a.defined() && args.b.defined() && args.c.defined(), "[gemm] a, b and c must be defined");
  MANTISSA_CHECK(args.a.shape().rank() == 2 && args.b.shape().rank() == 2 && args.c.shape().rank() == 2,
                 "[gemm] a, b and c must be matrices, got {}, {} and {}", args.a.shape(), args.b.shape(),
                 args.c.shape());
  const bool trans_a = args.trans_a == Transpose::kYes, trans_b = args.trans_b == Transpose::kYes;
  const Extents e{args.c.dim(0), args.c.dim(1), args.a.dim(trans_a ? 0 : 1)};
  MANTISSA_CHECK(e.m > 0 && e.n > 0 && e.k > 0, "[gemm] M, N and K must be > 0, got {}, {} and {}", e.m, e.n, e.k);
  const Shape shape_a = trans_a ? Shape{e.k, e.m} : Shape{e.m, e.k};
  const Shape shape_b = trans_b ? Shape{e.n, e.k} : Shape{e.k, e.n};
  MANTISSA_CHECK(args.a.shape() == shape_a, "[gemm] a must have shape {} for c {}, got {}", shape_a, args.c.shape(),
                 args.a.shape());
  MANTISSA_CHECK(args.b.shape() == shape_b, "[gemm] b must have shape {} for c {} and a {}, got {}", shape_b,
                 args.c.shape(), args.a.shape(), args.b.shape());
  MANTISSA_CHECK(is_floating(args.a.dtype()) && args.a.dtype() == args.b.dtype(),
                 "[gemm] a and b must have one floating dtype, got {} and {}", args.a.dtype(), args.b.dtype());
  MANTISSA_CHECK(args.c.dtype() == DType::kF32 || args.c.dtype() == args.a.dtype(),
                 "[gemm] c must be fp32 or {} as a and b, got {}", args.a.dtype(), args.c.dtype());
  if (args.mode == GradientMode::kAccumulate) {
    MANTISSA_CHECK(args.c.dtype() == DType::kF32, "[gemm] c must be fp32 to accumulate into it, got {}",
                   args.c.dtype());
    MANTISSA_CHECK(!args.bias.defined(), "[gemm] bias cannot be added while accumulating");
  }
  if (args.bias.defined()) {
    MANTISSA_CHECK(args.bias.shape() == Shape{e.n} && is_floating(args.bias.dtype()),
                   "[gemm] bias must be floating with shape ({}), got {} {}", e.n, args.bias.dtype(),
                   args.bias.shape());
  }
  return e;
}

// The bias as fp32: where it lies, or converted into `scratch`.
const float* bias_as_fp32(const Tensor& bias, Scratch& scratch) {
  if (!bias.defined()) return nullptr;
  if (bias.dtype() == DType::kF32) return bias.data<float>();
  float* converted = reinterpret_cast<float*>(scratch.reserve(static_cast<size_t>(bias.numel()) * sizeof(float)));
  load_tile({.src = bias.raw(),
             .rows = 1,
             .columns = bias.numel(),
             .stride = bias.numel(),
             .from = bias.dtype(),
             .dst = converted});
  return converted;
}

}  // namespace

void gemm(const GemmArgs& args) { gemm(args, preferred_bf16_gemm()); }

void gemm(const GemmArgs& args, Bf16Gemm bf16) {
  thread_local Scratch bias_scratch;
  const Extents e = check_args(args);
  const bool widen = args.a.dtype() == DType::kF16 || (args.a.dtype() == DType::kBF16 && bf16 == Bf16Gemm::kWidened);
  const GemmJob job{.m = e.m,
                    .n = e.n,
                    .k = e.k,
                    .plan = plan_gemm(e.m, e.n, e.k, widen ? GemmDepth::kChunks : GemmDepth::kWhole),
                    .a = GemmOperand(args.a),
                    .b = GemmOperand(args.b),
                    .trans_a = args.trans_a,
                    .trans_b = args.trans_b,
                    .c = args.c,
                    .bias = bias_as_fp32(args.bias, bias_scratch),
                    .mode = args.mode};
  if (widen) {
    gemm_widened(job);
  } else {
    gemm_in_place(job);
  }
}

}  // namespace mantissa::cpu
