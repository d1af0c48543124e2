#include "core/quant/tensor_format.h"

#include <fmt/core.h>

namespace mantissa {

std::string name(TensorFormat format) { return fmt::format("{}:{}", name(format.scaling), info(format.format).name); }

std::string refusal(TensorFormat format) {
  const bool is_two_level = format.scaling == Scaling::kTwoLevel;
  const bool is_4_bit = format.format == Format::kE2M1;
  const bool is_8_bit = format.format == Format::kE4M3 || format.format == Format::kE5M2;
  if (is_two_level ? is_4_bit : is_8_bit) return "";
  return fmt::format("{} scaling is for {}, got {}", name(format.scaling), is_two_level ? "e2m1" : "e4m3 and e5m2",
                     info(format.format).name);
}

}  // namespace mantissa
