// c = op(a) op(b) + bias, or c += op(a) op(b); activations by the kernels of gelu.
//
// The output is cut into tiles that depend on the shape only (gemm_plan.h); each tile is computed by one thread with a
// single-threaded oneDNN matmul, K chunk by K chunk in order, in fp32, and rounded once on store. Left to itself oneDNN
// splits K over the threads for some shapes, and the sum would depend on their number.
//
// fp32, and bf16 where the CPU is fast at it, are multiplied in place. fp16 (oneDNN 2.6 has no such matmul) and other
// bf16 are widened into dense fp32 tiles, which costs a few per cent of the multiplication.
#include "core/cpu/gemm.h"

#include "core/backend/gemm_steps.h"
#include "core/backend/kernel_checks.h"
#include "core/cpu/gelu.h"
#include "core/cpu/gemm_job.h"
#include "core/cpu/gemm_tile.h"
#include "core/cpu/scratch.h"
#include "core/tensor/half.h"

namespace mantissa::cpu {
namespace {

// The bias as fp32 after its rounding to c's dtype: where it lies, or converted into `scratch`.
const float* bias_as_fp32(const Tensor& bias, DType c_dtype, Scratch& scratch) {
  if (!bias.defined()) return nullptr;
  if (bias.dtype() == DType::kF32 && c_dtype == DType::kF32) return bias.data<float>();
  const int64_t n = bias.numel();
  auto* const converted = reinterpret_cast<float*>(scratch.reserve(static_cast<size_t>(n) * sizeof(float)));
  dispatch(bias.dtype(), [&]<typename From>() {
    dispatch(c_dtype, [&]<typename To>() {
      const From* const values = bias.data<From>();
      for (int64_t i = 0; i < n; ++i) converted[i] = to_float(from_float<To>(to_float(values[i])));
    });
  });
  return converted;
}

}  // namespace

void gemm(const GemmArgs& args) { gemm(args, preferred_bf16_gemm()); }

void gemm(const GemmArgs& args, Bf16Gemm bf16) {
  thread_local Scratch bias_scratch;
  const GemmExtents e = check_args(args);
  if (args.activation != GemmActivation::kNone) {
    const auto product = [bf16](const GemmArgs& plain) { gemm(plain, bf16); };
    return gemm_in_steps(args, product, gelu_forward, gelu_backward);
  }
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
                    .bias = bias_as_fp32(args.bias, args.c.dtype(), bias_scratch),
                    .mode = args.mode};
  if (widen) {
    gemm_widened(job);
  } else {
    gemm_in_place(job);
  }
}

}  // namespace mantissa::cpu
