// Kernels that map each element by itself: cast, split into bf16 parts, add, dropout, fill.
#pragma once

#include <cmath>

#include "core/kernels/kernel_args.h"

namespace mantissa {

// dst = round(src * scale), any float dtypes, equal numel. scale multiplies in fp32. dst may be src.
struct CastArgs {
  static constexpr std::string_view kName = "cast";
  Tensor src{}, dst{};
  float scale = 1.0f;

  static auto operands(auto& args) { return std::array{&args.src, &args.dst}; }
};

// The number of bf16 parts that hold all 24 bits of an fp32 number.
inline constexpr int kMostParts = 3;

// x (fp32, any shape) as the sum of bf16 tensors of its numel, two or three (parts[2] is undefined for two):
//   parts[0] = bf16(x), parts[1] = bf16(x - parts[0]), parts[2] = bf16(x - parts[0] - parts[1])
// each rounded to nearest, ties to even; the differences are exact in fp32. Two parts omit at most 2^-17 |x|. Three
// omit nothing, except at most half of bf16's smallest number, 2^-133. A part of a finite x that would round to Inf is
// bf16's largest number instead, and the next parts hold the rest; two parts may then omit 2^111. A non-finite x is
// stored in the last part, with 0 in the others: products omit those of the last parts with all but the first (see
// core/ops/fp32_product.h). So an Inf is multiplied by the first part of a finite number only, not by a part that may
// be 0, and stays Inf.
struct SplitArgs {
  static constexpr std::string_view kName = "split";
  Tensor x{};
  Tensor parts[kMostParts]{};

  int count() const { return parts[2].defined() ? 3 : 2; }

  static auto operands(auto& args) { return std::array{&args.x, &args.parts[0], &args.parts[1], &args.parts[2]}; }
};

// y = a + b, float dtypes may differ; y may be a or b.
struct AddArgs {
  static constexpr std::string_view kName = "add";
  Tensor a{}, b{}, y{};

  static auto operands(auto& args) { return std::array{&args.a, &args.b, &args.y}; }
};

// y = keep ? x / (1 - p) : 0; a dropped element is 0 even if it was NaN. Element e of global sample s is kept when its
// Philox word >= p * 2^32 (rounded): philox(seed, {e / 4, site, s, step})[e % 4], with e counted within the sample and
// s = first_sample + local sample. x, y (samples * elements_per_sample) float; y may be x. The derivative is the same
// kernel on dy. step (1) i32 is read when the kernel runs, so that every repetition of a captured step has its own
// mask.
struct DropoutArgs {
  static constexpr std::string_view kName = "dropout";
  Tensor x{}, y{};
  float probability = 0.0f;
  uint64_t seed = 0;
  Tensor step{};
  uint32_t site = 0, first_sample = 0;
  int64_t elements_per_sample = 0;

  // Words below the threshold drop their element. p < 1 in fp32 is at most 1 - 2^-24: the result fits in 32 bits.
  uint32_t threshold() const {
    return static_cast<uint32_t>(std::nearbyint(static_cast<double>(probability) * 0x1p32));
  }
  float scale() const { return static_cast<float>(1.0 / (1.0 - static_cast<double>(probability))); }

  static auto operands(auto& args) { return std::array{&args.x, &args.y, &args.step}; }
};

// Every element of dst becomes `value`, rounded to its dtype. A tensor that is not floating can only be filled with 0.
struct FillArgs {
  static constexpr std::string_view kName = "fill";
  Tensor dst{};
  float value = 0.0f;

  static auto operands(auto& args) { return std::array{&args.dst}; }
};

MANTISSA_DECLARE_KERNEL(CastArgs, void)
MANTISSA_DECLARE_KERNEL(SplitArgs, void)
MANTISSA_DECLARE_KERNEL(AddArgs, void)
MANTISSA_DECLARE_KERNEL(DropoutArgs, void)
MANTISSA_DECLARE_KERNEL(FillArgs, void)

inline KernelWork work_of(const DropoutArgs& args) { return traffic(bytes_of(args.x, args.y)); }

}  // namespace mantissa
