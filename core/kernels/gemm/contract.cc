// Matrix multiplication with its epilogues: checks of operands, FLOP and bytes.
#include "core/kernels/gemm/args.h"

#include "core/kernels/check_args.h"
#include "core/kernels/fp8_gemm_support.h"

namespace mantissa {
namespace {

void check_activation(const GemmArgs& args) {
  if (args.activation == GemmActivation::kNone) {
    MANTISSA_CHECK(!args.aux.defined(), "[gemm] aux belongs to an activation, and there is none");
    return;
  }
  check_tensor("gemm", "aux", args.aux, args.c.dtype(), "(M, N)", args.c.shape());
  MANTISSA_CHECK(args.aux.raw() != args.c.raw(), "[gemm] aux must not be c");
  MANTISSA_CHECK(args.mode == GradientMode::kWrite, "[gemm] a product with an activation cannot be accumulated");
  MANTISSA_CHECK(args.activation == GemmActivation::kGelu || !args.bias.defined(),
                 "[gemm] bias cannot be added to a product that gelu's derivative multiplies");
}

void check_bias_gradient(const GemmArgs& args, int64_t m) {
  if (!args.bias_gradient.defined()) return;
  check_tensor("gemm", "bias_gradient", args.bias_gradient, wide_of(args.a.dtype()), "(M)", Shape{m});
  MANTISSA_CHECK(args.trans_a == Transpose::kYes && args.activation == GemmActivation::kNone,
                 "[gemm] bias_gradient needs a transposed a, and no activation");
  MANTISSA_CHECK(!args.a_scale.defined() && !args.b_scale.defined(),
                 "[gemm] bias_gradient sums a as it is stored, which does not match a product with scales");
}

void check_scale(const GemmArgs& args, const char* what, const Tensor& scale) {
  if (!scale.defined()) return;
  check_dtype("gemm", what, scale, DType::kF32);
  check_numel("gemm", what, scale, 1);
  MANTISSA_CHECK(args.activation == GemmActivation::kNone, "[gemm] {} divides a product without an activation only",
                 what);
}

void check_block_scales(const char* what, const Tensor& scales, BlockScaleLayout layout, const Tensor& codes) {
  check_tensor("gemm", what, scales, layout == BlockScaleLayout::kMicroTiles ? DType::kU8 : DType::kF32,
               "(block_scale_count)", Shape{block_scale_count(layout, codes.dim(0), codes.dim(1))});
  constexpr uintptr_t kAlignmentBytes = 16;
  MANTISSA_CHECK(reinterpret_cast<uintptr_t>(scales.raw()) % kAlignmentBytes == 0,
                 "[gemm] {} must be aligned to {} bytes", what, kAlignmentBytes);
}

void check_block_scales(const GemmArgs& args, int64_t k) {
  MANTISSA_CHECK(args.a_block_scales.defined() == args.b_block_scales.defined(),
                 "[gemm] a and b must both have block scales, or neither; got block scales of {} only",
                 args.a_block_scales.defined() ? "a" : "b");
  if (!args.has_block_scales()) return;
  MANTISSA_CHECK(args.a.dtype() == DType::kU8, "[gemm] block scales belong to codes, got a and b in {}",
                 args.a.dtype());
  MANTISSA_CHECK(!args.a_scale.defined() && !args.b_scale.defined(),
                 "[gemm] a product with block scales has no a_scale or b_scale");
  MANTISSA_CHECK(block_length(args.a_layout) == block_length(args.b_layout),
                 "[gemm] a and b must have blocks of one length, got {} and {}", block_length(args.a_layout),
                 block_length(args.b_layout));
  MANTISSA_CHECK(k % block_length(args.a_layout) == 0, "[gemm] K must be a multiple of blocks of {}, got {}",
                 block_length(args.a_layout), k);
  constexpr BlockScaleLayout kSquare = BlockScaleLayout::kSquareBlocks128;
  MANTISSA_CHECK(args.a_layout != kSquare || args.b_layout != kSquare,
                 "[gemm] a and b must not both have square blocks");
  check_block_scales("a_block_scales", args.a_block_scales, args.a_layout, args.a);
  check_block_scales("b_block_scales", args.b_block_scales, args.b_layout, args.b);
}

bool is_code_format(Format format) { return format == Format::kE4M3 || format == Format::kE5M2; }

void check_codes(const GemmArgs& args, const GemmExtents& e) {
  MANTISSA_CHECK(is_code_format(args.a_format) && is_code_format(args.b_format) &&
                     !(args.a_format == Format::kE5M2 && args.b_format == Format::kE5M2),
                 "[gemm] codes must be of e4m3 or e5m2, and not both of e5m2, got {} and {}", info(args.a_format).name,
                 info(args.b_format).name);
  MANTISSA_CHECK(args.trans_a == Transpose::kNo && args.trans_b == Transpose::kYes,
                 "[gemm] codes must be stored as (M, K) and (N, K), with trans_b alone");
  MANTISSA_CHECK(e.m % kFp8GemmMultiple == 0 && e.n % kFp8GemmMultiple == 0 && e.k % kFp8GemmMultiple == 0,
                 "[gemm] M, N and K of codes must be multiples of {}, got {}, {} and {}", kFp8GemmMultiple, e.m, e.n,
                 e.k);
  MANTISSA_CHECK(is_floating(args.c.dtype()), "[gemm] c must be floating, got {}", args.c.dtype());
  MANTISSA_CHECK(!args.bias.defined() || args.c.dtype() != DType::kF32,
                 "[gemm] a bias is added to a product of codes in 16 bits only, got c in fp32");
  MANTISSA_CHECK(args.activation == GemmActivation::kNone && !args.bias_gradient.defined() && args.b_cache == nullptr,
                 "[gemm] a product of codes has no activation, bias_gradient or b_cache");
}

void check_dtypes(const GemmArgs& args, const GemmExtents& e) {
  MANTISSA_CHECK(args.a.dtype() == args.b.dtype() && (is_floating(args.a.dtype()) || args.a.dtype() == DType::kU8),
                 "[gemm] a and b must have one floating dtype, or be codes, got {} and {}", args.a.dtype(),
                 args.b.dtype());
  if (args.a.dtype() == DType::kU8) return check_codes(args, e);
  MANTISSA_CHECK(args.c.dtype() == wide_of(args.a.dtype()) || args.c.dtype() == args.a.dtype(),
                 "[gemm] c must be {} or {} as a and b, got {}", wide_of(args.a.dtype()), args.a.dtype(),
                 args.c.dtype());
}

}  // namespace

GemmExtents check_args(const GemmArgs& args) {
  MANTISSA_CHECK(args.a.defined() && args.b.defined() && args.c.defined(), "[gemm] a, b and c must be defined");
  MANTISSA_CHECK(args.a.shape().rank() == 2 && args.b.shape().rank() == 2 && args.c.shape().rank() == 2,
                 "[gemm] a, b and c must be matrices, got {}, {} and {}", args.a.shape(), args.b.shape(),
                 args.c.shape());
  const bool trans_a = args.trans_a == Transpose::kYes, trans_b = args.trans_b == Transpose::kYes;
  const GemmExtents e{args.c.dim(0), args.c.dim(1), args.a.dim(trans_a ? 0 : 1)};
  MANTISSA_CHECK(e.m > 0 && e.n > 0 && e.k > 0, "[gemm] M, N and K must be > 0, got {}, {} and {}", e.m, e.n, e.k);
  const Shape shape_a = trans_a ? Shape{e.k, e.m} : Shape{e.m, e.k};
  const Shape shape_b = trans_b ? Shape{e.n, e.k} : Shape{e.k, e.n};
  MANTISSA_CHECK(args.a.shape() == shape_a, "[gemm] a must have shape {} for c {}, got {}", shape_a, args.c.shape(),
                 args.a.shape());
  MANTISSA_CHECK(args.b.shape() == shape_b, "[gemm] b must have shape {} for c {} and a {}, got {}", shape_b,
                 args.c.shape(), args.a.shape(), args.b.shape());
  check_dtypes(args, e);
  if (args.mode == GradientMode::kAccumulate) {
    MANTISSA_CHECK(args.c.dtype() == wide_of(args.a.dtype()), "[gemm] c must be {} to accumulate into it, got {}",
                   wide_of(args.a.dtype()), args.c.dtype());
    MANTISSA_CHECK(!args.bias.defined(), "[gemm] bias cannot be added while accumulating");
  }
  if (args.bias.defined()) {
    MANTISSA_CHECK(args.bias.shape() == Shape{e.n} && is_floating(args.bias.dtype()),
                   "[gemm] bias must be floating with shape ({}), got {} {}", e.n, args.bias.dtype(),
                   args.bias.shape());
  }
  check_activation(args);
  check_bias_gradient(args, e.m);
  check_scale(args, "a_scale", args.a_scale);
  check_scale(args, "b_scale", args.b_scale);
  check_block_scales(args, e.k);
  return e;
}

KernelWork work_of(const GemmArgs& args) {
  const auto m = static_cast<double>(args.c.dim(0)), n = static_cast<double>(args.c.dim(1));
  const auto k = static_cast<double>(args.a.dim(args.trans_a == Transpose::kYes ? 0 : 1));
  return {.flops = 2.0 * m * n * k,
          .bytes = bytes_of(args.a, args.b, args.bias, args.aux, args.a_block_scales, args.b_block_scales) +
                   result_bytes(args.c, args.mode),
          .dtype = args.a.dtype()};
}

std::string variant_of(const GemmArgs& a) {
  std::string text{a.trans_a == Transpose::kYes ? 't' : 'n', a.trans_b == Transpose::kYes ? 't' : 'n'};
  if (a.mode == GradientMode::kAccumulate) text += " +=";
  if (a.bias_gradient.defined() && a.bias_gradient_mode == GradientMode::kAccumulate) text += " bias+=";
  if (a.activation == GemmActivation::kGelu) text += " gelu";
  if (a.activation == GemmActivation::kGeluGradient) text += " gelu'";
  if (a.activation != GemmActivation::kNone && a.form == GeluForm::kErf) text += " erf";
  if (a.a.dtype() == DType::kF32 && a.fp32_math == Fp32Math::kTf32) text += " tf32";
  return text;
}

}  // namespace mantissa
