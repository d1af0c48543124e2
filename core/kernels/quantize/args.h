// Rounding of matrices to low-precision formats, and the scales for it.
#pragma once

#include <string>

#include "core/kernels/kernel_args.h"
#include "core/kernels/quantize/records.h"
#include "core/quant/coded_rows.h"
#include "core/quant/scales.h"
#include "core/quant/tensor_format.h"

namespace mantissa {

// The largest magnitude in x (float, any shape) and the number of its NaN and Inf. kWrite overwrites the record.
// kAccumulate raises record.amax to the magnitude and adds the number.
struct AmaxArgs {
  static constexpr std::string_view kName = "amax";
  Tensor x{};
  Tensor record{};  // bytes of one QuantizeRecord
  GradientMode mode = GradientMode::kAccumulate;

  static auto operands(auto& a) { return std::array{&a.x, &a.record}; }
};

// scale (1) fp32 = tensor_scale(record.amax, max, 0, 1): 1 if the amax is 0 or not finite.
struct TensorScaleArgs {
  static constexpr std::string_view kName = "tensor_scale";
  Tensor record{};  // bytes of one QuantizeRecord
  float max = 0.0f;
  Tensor scale{};

  static auto operands(auto& a) { return std::array{&a.record, &a.scale}; }
};

// Stochastic rounding of a matrix of whole samples: element e of global sample s = first_sample + local sample takes
//   philox(seed, {e / 4, site, s, step})[e % 4],
// as in DropoutArgs, independent of ranks, shards, devices and threads.
struct StochasticArgs {
  int64_t elements_per_sample = 0;  // 0: rounds to nearest, ties to even
  uint64_t seed = 0;
  Tensor step{};  // (1) i32, read when the kernel runs
  uint32_t site = 0, first_sample = 0;
};

// dst = the numbers that a product of matrices in `format` multiplies. For the code q of each element of src (R, C)
// float:
//   kDelayed, kCurrent   dst = q = round(src * *scale), and the product must be divided by *scale
//   kBlock, kMicro       dst = q / s, with the block's scale s, a power of two; q = round(src * s)
//   kTwoLevel            dst = q * b, and the product must be divided by *scale; b is the block's scale in e4m3,
//                        q = round(src * (*scale / b))
// dst (R, C) bf16 holds each number exactly, except magnitudes below 2^-126 (kMicro: blocks with an amax below some
// 2^-108), which are rounded to bf16. Blocks at the end may be shorter. Rounds to nearest, ties to even, or as
// `stochastic` says. Values beyond the range of the format become its maximum. NaN and Inf stay visible as
// core/quant/narrow_format.h says; with block scales, in their whole block.
// scale: (1) fp32, from core/quant/scales.h; undefined for kBlock and kMicro. record: the record of AmaxArgs for src,
// accumulated; undefined for none.
//
// Instead of dst, with rounding to nearest: codes (R, C) u8 and transposed_codes (C, R) u8 receive the codes of q
// (core/tensor/format.h) for products of u8 operands (GemmArgs). Either may be undefined. The device determines the
// sign and the payload of a NaN. Blocks must lie along the rows of a matrix of codes, over which a product sums:
//   kDelayed, kCurrent   both may be given; `axis` has no effect
//   kBlock               codes with kColumns, transposed_codes with kRows, either or both with kBoth
//   kMicro               codes with kColumns, transposed_codes with kRows
// code_scales: required with codes of kBlock (fp32) or kMicro (u8, codes of e8m0). They are 1/s of each block, a power
// of two or NaN, in a tensor of rank 1 in the order of block_scale_layout(), whose padding becomes 0.
// transposed_code_scales: the same for transposed_codes.
struct QuantizeArgs {
  static constexpr std::string_view kName = "quantize";
  Tensor src{}, dst{};
  TensorFormat format{};
  BlockAxis axis = BlockAxis::kColumns;
  Tensor scale{}, record{};
  StochasticArgs stochastic{};
  Tensor codes{}, transposed_codes{};
  Tensor code_scales{}, transposed_code_scales{};

  bool makes_codes() const { return codes.defined() || transposed_codes.defined(); }

  static auto operands(auto& a) {
    return addresses_of(a.src, a.dst, a.scale, a.record, a.stochastic.step, a.codes, a.transposed_codes, a.code_scales,
                        a.transposed_code_scales);
  }
};

// dst (n) float = value of codes (n) / *scale, with codes of e4m3 or e5m2 from QuantizeArgs::codes and scale (1) fp32:
// unscaled_value_of() of core/quant/narrow_format.h, rounded on store.
struct FromCodesArgs {
  static constexpr std::string_view kName = "from_codes";
  Tensor codes{}, dst{};
  Format format = Format::kE4M3;
  Tensor scale{};

  static auto operands(auto& a) { return std::array{&a.codes, &a.dst, &a.scale}; }
};

// dst = round(src * scale), src (n) fp32: the gradient of a lane, or a part of it, as it is sent in the dtype `wire`.
//   bf16, fp16   dst (n) of this dtype, rounded stochastically or with error feedback; cast() rounds to nearest
//   e4m3, e5m2   dst of this dtype: rows of codes (coded_rows.h), in which src is elements `first` to first + n - 1. Or
//                dst (n) fp32: the numbers of these codes. src and first are multiples of the block, src and dst lie
//                at multiples of 16 bytes.
// Element e of src is rounded to nearest, ties to even, if `step` is undefined, else stochastically by
//   philox(key, {e / 4 mod 2^32, e / 4 / 2^32, parameter, *step})[e % 4],
// independent of ranks, devices and threads.
//
// Error feedback (Seide et al. 2014; Karimireddy et al. 2019), if residuals (n) fp32 are defined: src + e * *unit takes
// the place of src, with e = residuals[*applied % 2]. The other residual receives the error of rounding this sum,
// divided by scale * *unit, or 0 where the quotient is not finite. e itself stays until `applied` counts on, so a call
// may be repeated. unit: a factor that src carries and e does not; exact if it is a power of two.
struct RoundContributionArgs {
  static constexpr std::string_view kName = "round_contribution";
  Tensor src{}, dst{};
  DType wire = DType::kBF16;
  int64_t first = 0;
  float scale = 1.0f;
  Tensor step{};  // (1) i32, read when the kernel runs
  uint64_t key = 0;
  uint32_t parameter = 0;
  std::array<Tensor, 2> residuals{};
  Tensor applied{}, unit{};  // (1) i32, (1) fp32, read when the kernel runs

  bool has_feedback() const { return residuals[0].defined(); }

  static auto operands(auto& a) {
    return addresses_of(a.src, a.dst, a.step, a.residuals[0], a.residuals[1], a.applied, a.unit);
  }
};

// y (R, C) = the random Hadamard transform of x (R, C), both float, along the rows; R is a multiple of 16. For each
// column and each 16 rows, y[i] = sum over j of h[i][j] * s[j] * x[j] / 4, with the Sylvester-Hadamard matrix h of +-1
// and the signs s of core/quant/narrow_format.h. It is orthogonal: a^T b = y(a)^T y(b). Butterflies in fp32 with
// distances 1, 2, 4, 8, one rounding on store. y is not x.
struct HadamardArgs {
  static constexpr std::string_view kName = "hadamard";
  Tensor x{}, y{};

  static auto operands(auto& a) { return std::array{&a.x, &a.y}; }
};

// A step of delayed scaling for S tensors on N ranks. The history of a tensor receives the largest amax of all ranks,
// and next_delayed_scale() computes its scale from the history. If `decision` says that the step was held, only `mine`
// changes.
//   records (N, S * sizeof(QuantizeRecord)) u8: the records of all ranks, in order
//   mine (S * sizeof(QuantizeRecord)) u8: the records of this rank, which are cleared
//   total (S * sizeof(QuantizeRecord)) u8: receives the combined records of all ranks
//   history (S, options.history) i32, magnitude_bits(); scales (S) fp32; maxima (S) fp32, of the formats
//   entries (1) i32: the number of entries so far, which is incremented
//   decision: bytes of an UpdateDecision; undefined: not held
struct DelayedScalesArgs {
  static constexpr std::string_view kName = "delayed_scales";
  Tensor records{}, mine{}, total{}, history{}, scales{}, maxima{}, entries{}, decision{};
  DelayedScalingOptions options{};

  static auto operands(auto& a) {
    return std::array{&a.records, &a.mine, &a.total, &a.history, &a.scales, &a.maxima, &a.entries, &a.decision};
  }
};

struct DelayedScalesExtents {
  int64_t ranks, tensors;
};
MANTISSA_DECLARE_KERNEL(AmaxArgs, void)
MANTISSA_DECLARE_KERNEL(TensorScaleArgs, void)
MANTISSA_DECLARE_KERNEL(QuantizeArgs, Rows)  // src
MANTISSA_DECLARE_KERNEL(FromCodesArgs, void)
MANTISSA_DECLARE_KERNEL(RoundContributionArgs, void)
MANTISSA_DECLARE_KERNEL(HadamardArgs, Rows)  // x
MANTISSA_DECLARE_KERNEL(DelayedScalesArgs, DelayedScalesExtents)

KernelWork work_of(const QuantizeArgs& args);
std::string variant_of(const QuantizeArgs& args);
KernelWork work_of(const DelayedScalesArgs& args);

}  // namespace mantissa
