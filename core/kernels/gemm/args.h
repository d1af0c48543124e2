// Matrix multiplication with its epilogues.
#pragma once

#include <string>

#include "core/kernels/activation/records.h"
#include "core/kernels/gemm/operand_cache.h"
#include "core/kernels/kernel_args.h"
#include "core/quant/tensor_format.h"
#include "core/tensor/device_options.h"
#include "core/tensor/format.h"

namespace mantissa {

enum class Transpose : uint8_t { kNo, kYes };

// A function applied to a product before it is stored, see GemmArgs.
enum class GemmActivation : uint8_t { kNone, kGelu, kGeluGradient };

// c (M, N) = op(a) (M, K) * op(b) (K, N) [+ bias (N)]. With kAccumulate c += ...; c is then fp32 and there is no bias.
// a and b share a float dtype; c has that dtype or fp32. a is stored (M, K), or (K, M) with trans_a. b is stored (K,
// N), or (N, K) with trans_b. Sums are fp32 and rounded once when they are stored. bias has any float dtype, and is
// undefined for none. It is rounded to c's dtype before it is added, because cuBLASLt adds no other. A device may also
// round the product to c's dtype before it adds the bias, and round the sum again: cuBLASLt 13.1 does on an H100.
//
// Activations need kWrite, and aux (M, N) of c's dtype, which is not c:
//   kGelu          aux = the product with its bias, rounded; c = gelu(aux).
//   kGeluGradient  c = product * gelu'(aux), without a bias. This is the gradient of gelu's input.
// A device may fuse them into one kernel, for 16-bit dtypes and kTanh only. The fused kernel may skip roundings (it may
// take gelu of the unrounded aux, and multiply the unrounded product) and compute tanh to within 2^-11, like PTX's
// tanh.approx. Otherwise the kernels of gemm and gelu run one after the other, with their roundings.
//
// bias_gradient (M) fp32 receives the column sums of a, as in ColumnSumArgs. It needs trans_a, and neither activation
// nor scales. A linear layer's weight gradient reads the same dy that the bias gradient sums.
//
// a_scale, b_scale: (1) fp32, read when the kernel runs; undefined for 1. The values of a and b were multiplied by them
// before they were rounded (QuantizeArgs), so the product is divided by both. It is multiplied by the fp32 inverse of
// one and then of the other, or by the product of both inverses, before the bias is added and before it is accumulated
// or rounded. They exclude an activation.
//
// b_cache: a cache for b from Backend::make_operand_cache(); nullptr for none. b must not change until
// b_cache->forget(), and no other matrix may use the cache. Results are the same bits.
//
// On a device whose Backend::fp8_gemm_support() allows it, a and b may both be u8 codes (core/tensor/format.h) of
// a_format and b_format, which are e4m3 or e5m2 and not both e5m2. K lies along the rows of both: a is stored (M, K), b
// (N, K), with trans_b alone. M, N and K are multiples of 16. c has any float dtype, and fp32 for kAccumulate. A bias
// needs a 16-bit c; activation, bias_gradient and b_cache are excluded. Products are exact. The device's units sum them
// and may keep fewer bits than fp32 between additions (docs/precision.md).
//
// a_block_scales, b_block_scales: for u8 operands, both or neither, and without a_scale and b_scale. Each block of
// codes is multiplied by its scale, which is the inverse of QuantizeArgs' multiplier and is read when the kernel runs.
// The tensor is (block_scale_count) fp32, or u8 codes of e8m0 with kMicroTiles, in the order of a_layout and b_layout.
// Its address is a multiple of 16 bytes. Both operands have the same block length, a divisor of K. At most one has
// square blocks.
struct GemmArgs {
  static constexpr std::string_view kName = "gemm";
  Tensor a{}, b{}, c{}, bias{}, aux{}, bias_gradient{}, a_scale{}, b_scale{};
  Transpose trans_a = Transpose::kNo, trans_b = Transpose::kNo;
  GradientMode mode = GradientMode::kWrite, bias_gradient_mode = GradientMode::kWrite;
  GemmActivation activation = GemmActivation::kNone;
  GeluForm form = GeluForm::kTanh;
  OperandCache* b_cache = nullptr;
  Format a_format = Format::kE4M3, b_format = Format::kE4M3;  // of u8 operands
  Fp32Math fp32_math = Fp32Math::kFull;                       // of fp32 a and b
  Tensor a_block_scales{}, b_block_scales{};
  BlockScaleLayout a_layout = BlockScaleLayout::kRowBlocks128, b_layout = BlockScaleLayout::kRowBlocks128;

  bool has_block_scales() const { return a_block_scales.defined(); }

  static auto operands(auto& args) {
    return addresses_of(args.a, args.b, args.c, args.bias, args.aux, args.bias_gradient, args.a_scale, args.b_scale,
                        args.a_block_scales, args.b_block_scales);
  }
};

struct GemmExtents {
  int64_t m, n, k;
};
MANTISSA_DECLARE_KERNEL(GemmArgs, GemmExtents)

KernelWork work_of(const GemmArgs& args);
std::string variant_of(const GemmArgs& args);

}  // namespace mantissa
