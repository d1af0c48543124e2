#include "tools/lab/analyze/format_range.h"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <limits>

namespace mantissa {
namespace {

float of_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

float rounded(const Rounding& rounding, float value) { return rounding.round({value}).front(); }

// The smallest magnitude in (low, high] that has a property which all larger ones there have; `high` has it.
template <typename Property>
float first_with(float low, float high, const Property& property) {
  uint32_t without = std::bit_cast<uint32_t>(low), with = std::bit_cast<uint32_t>(high);
  while (without + 1 < with) {
    const uint32_t middle = without + (with - without) / 2;
    (property(of_bits(middle)) ? with : without) = middle;
  }
  return of_bits(with);
}

// Where a rounding that saturates begins to be off by more than half of the distance between its last two numbers.
std::optional<double> saturates_from(const Rounding& rounding, float max) {
  if (max == std::numeric_limits<float>::max()) return std::nullopt;
  const float last_step_at = first_with(0.0f, max, [&](float value) { return rounded(rounding, value) == max; });
  const double below = rounded(rounding, of_bits(std::bit_cast<uint32_t>(last_step_at) - 1));
  return max + (max - below) / 2;
}

// Whether 2^exponent * (1 + epsilon) is stored as it is.
bool has_full_precision(const Rounding& rounding, int exponent, double epsilon) {
  const auto value = static_cast<float>(std::ldexp(1.0 + epsilon, exponent));
  return rounded(rounding, value) == value;
}

std::string describe(const char* what, double measured, double expected) {
  return measured == expected ? "" : fmt::format("{} is {:.8g}, expected {:.8g}", what, measured, expected);
}

}  // namespace

double FormatRange::dynamic_range_db() const { return 20.0 * std::log10(max / min_positive); }

FormatRange measure_range(const Rounding& rounding) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  FormatRange range;
  const float top = rounded(rounding, kLargest);
  if (std::isfinite(top)) {
    range.max = top;
    range.overflow_from = saturates_from(rounding, top);
  } else {
    const float first = first_with(1.0f, kLargest, [&](float v) { return !std::isfinite(rounded(rounding, v)); });
    range.overflow_from = first;
    range.max = rounded(rounding, of_bits(std::bit_cast<uint32_t>(first) - 1));
  }
  if (rounded(rounding, kSmallest) != 0.0f) {
    range.min_positive = kSmallest;
  } else {
    const float first = first_with(kSmallest, 1.0f, [&](float v) { return rounded(rounding, v) != 0.0f; });
    range.min_positive = rounded(rounding, first);
    range.underflow_at = of_bits(std::bit_cast<uint32_t>(first) - 1);
  }
  const float after_one = first_with(1.0f, 2.0f, [&](float v) { return rounded(rounding, v) > 1.0f; });
  range.epsilon = static_cast<double>(rounded(rounding, after_one)) - 1.0;
  int exponent = 0;
  while (exponent > -126 && has_full_precision(rounding, exponent - 1, range.epsilon)) --exponent;
  range.min_normal = std::ldexp(1.0, exponent);
  return range;
}

std::string difference_from_definition(const FormatRange& range, Format format) {
  const FormatInfo& f = info(format);
  std::string text;
  for (const std::string& one : {describe("the maximum", range.max, f.max),
                                 describe("the smallest normal number", range.min_normal, f.min_normal),
                                 describe("the smallest number", range.min_positive, f.min_subnormal),
                                 describe("epsilon", range.epsilon, f.epsilon)}) {
    if (!one.empty()) text += (text.empty() ? "" : "; ") + one;
  }
  return text;
}

}  // namespace mantissa
