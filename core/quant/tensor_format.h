// TensorFormat: a low-precision format and the recipe of its scales. Plain data.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/tensor/format.h"

namespace mantissa {

// How many values share a scale, and where it comes from; formulas in core/quant/scales.h.
enum class Scaling : uint8_t {
  kDelayed,   // the tensor; amaxes of earlier steps
  kCurrent,   // the tensor; its own amax
  kBlock,     // 128 values, or 128 x 128; a power of two
  kMicro,     // 32 values; e8m0
  kTwoLevel,  // 16 values, or 16 x 16, in e4m3; also the tensor
};
inline constexpr Scaling kAllScalings[] = {Scaling::kDelayed, Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro,
                                           Scaling::kTwoLevel};

struct TensorFormat {
  Format format = Format::kE4M3;  // e4m3, e5m2 or e2m1
  Scaling scaling = Scaling::kCurrent;
  auto operator<=>(const TensorFormat&) const = default;
};

// Values in a block along one dimension; 0 if the tensor has one scale.
constexpr int64_t block_length(Scaling scaling) {
  switch (scaling) {
    case Scaling::kDelayed:
    case Scaling::kCurrent:
      return 0;
    case Scaling::kBlock:
      return 128;
    case Scaling::kMicro:
      return 32;
    case Scaling::kTwoLevel:
      return 16;
  }
  return 0;
}

// Whether the tensor as a whole has a scale; with kTwoLevel, its blocks have scales as well.
constexpr bool has_tensor_scale(Scaling scaling) { return scaling != Scaling::kBlock && scaling != Scaling::kMicro; }

// As written in configurations: "delayed", "current", "block", "mxfp8", "nvfp4".
std::string_view name(Scaling scaling);
std::optional<Scaling> parse_scaling(std::string_view text);
std::string name(TensorFormat format);  // "delayed:e4m3"

// Why the recipe does not support the format; empty if it does: e2m1 goes with kTwoLevel, e4m3 and e5m2 with the
// others.
std::string refusal(TensorFormat format);

}  // namespace mantissa
