// Matrix multiplication with its epilogues.
#pragma once

#include <string>

#include "core/kernels/activation/args.h"
#include "core/kernels/device_options.h"
#include "core/kernels/gemm/operand_cache.h"
#include "core/kernels/kernel_args.h"
#include "core/kernels/kernel_work.h"
#include "core/quant/tensor_format.h"
#include "core/tensor/format.h"

namespace mantissa {

enum class Transpose : uint8_t { kNo, kYes };

// What becomes of a product before it is stored, see GemmArgs.
enum class GemmActivation : uint8_t { kNone, kGelu, kGeluGradient };

// c (M, N) = op(a) (M, K) * op(b) (K, N) [+ bias (N)]; with kAccumulate c += ... (then c is fp32 and there is no bias).
// a and b have one float dtype; c has that dtype or fp32. a is stored (M, K), or (K, M) when trans_a; b is stored (K,
// N), or (N, K) when trans_b. Accumulates in fp32; one rounding on store. bias: any float dtype, undefined for none;
// one of another dtype than c's is rounded to c's before it is added, since cuBLASLt adds no other.
//
// With an activation, kWrite, and aux (M, N) of c's dtype, which is not c:
//   kGelu          aux = the product with its bias, rounded; c = gelu(aux).
//   kGeluGradient  c = product * gelu'(aux), without a bias: in place of the gradient of gelu's output, of its input.
// A device that does this in one kernel, for 16-bit dtypes and kTanh only, may leave out roundings (gelu of what aux is
// rounded from; the product unrounded) and take tanh to within 2^-11, as PTX's tanh.approx does. Others run the kernels
// of gemm and gelu one after the other, with their roundings.
//
// bias_gradient (M) fp32, only with trans_a and without an activation or scales: the column sums of a as well, as
// ColumnSumArgs has them. The product that makes a linear layer's weight gradient reads the dy that the bias gradient
// is the sum of.
//
// a_scale, b_scale: (1) fp32, read when the kernel runs; undefined for 1. What the values of a and b were multiplied by
// before they were rounded (QuantizeArgs): the product is divided by both, by the fp32 inverse of one and then of the
// other or by the product of these inverses at once, before its bias is added and before it is accumulated or rounded.
// Without an activation.
//
// b_cache: of b, from Backend::make_operand_cache(); nullptr for none. b must stay as it is until b_cache->forget(),
// and the cache is this matrix's alone. Results are the same bits.
//
// On a device whose Backend::fp8_gemm_support() multiply them, a and b may both be u8: codes (core/tensor/format.h) of
// a_format and b_format, which are e4m3 or e5m2 and not both e5m2. What is summed over lies along the rows of both: a
// is stored (M, K), b (N, K), with trans_b alone. M, N and K are multiples of 16. c is of any float dtype, and fp32
// where it is accumulated; bias only with a c of 16 bits; no activation, bias_gradient or b_cache. Products are exact;
// their sum is that of the device's units, which may keep fewer bits than fp32 between additions (docs/precision.md).
//
// a_block_scales, b_block_scales: of u8 operands, both or neither, and without a_scale and b_scale. What each block of
// codes is multiplied by, the inverse of QuantizeArgs' multiplier, read when the kernel runs: (block_scale_count) of
// fp32, with kMicroTiles u8 codes of e8m0, that lie as a_layout and b_layout say, from an address that is a multiple of
// 16 bytes. Both operands have blocks of one length, which K is a multiple of, and not both have square ones.
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
    return std::array{&args.a,
                      &args.b,
                      &args.c,
                      &args.bias,
                      &args.aux,
                      &args.bias_gradient,
                      &args.a_scale,
                      &args.b_scale,
                      &args.a_block_scales,
                      &args.b_block_scales};
  }
};

struct GemmExtents {
  int64_t m, n, k;
};
GemmExtents check_args(const GemmArgs& args);

KernelWork work_of(const GemmArgs& args);
std::string variant_of(const GemmArgs& args);

namespace cpu {
void run(const GemmArgs& args);
}  // namespace cpu

namespace cuda {
void run(const GemmArgs& args, CudaStream& stream);
}  // namespace cuda

}  // namespace mantissa
