#include "amp/layer_lifts.h"

#include <fmt/format.h>

#include <algorithm>

namespace mantissa {
namespace {

DType raised(DType dtype) { return dtype == DType::kF16 ? DType::kBF16 : DType::kF32; }

// What an op whose setting is a dtype or `low` computes in; others go by their inputs.
DType dtype_of(const Precision& precision, Op op) {
  const auto index = static_cast<size_t>(op);
  if (precision.forced[index]) return *precision.forced[index];
  return precision.enabled && precision.rules[index] == CastRule::kLow ? precision.low : DType::kF32;
}

void lift_once(Precision& precision) {
  if (precision.linear.any()) {
    precision.linear = {};
    return;
  }
  precision.low = raised(precision.low);
  for (size_t index = 0; index < precision.rules.size(); ++index) {
    auto& forced = precision.forced[index];
    if (forced) forced = raised(*forced);
    const bool is_low = precision.rules[index] == CastRule::kLow && !forced;
    if ((forced == DType::kF32) || (is_low && precision.low == DType::kF32)) {
      // The rule, and no dtype, so that no scope lowers it again.
      forced.reset();
      precision.rules[index] = CastRule::kFp32;
    }
  }
}

int levels_above(DType dtype) { return dtype == DType::kF16 ? 2 : dtype == DType::kBF16 ? 1 : 0; }

}  // namespace

void lift(Precision& precision, int levels) {
  for (int level = 0; level < levels && lift_room(precision) > 0; ++level) lift_once(precision);
}

int lift_room(const Precision& precision) {
  return (precision.linear.any() ? 1 : 0) +
         std::max(levels_above(dtype_of(precision, Op::kLinear)), levels_above(dtype_of(precision, Op::kAttention)));
}

std::string describe_lift(const Precision& precision) {
  const DType dtype = std::max(dtype_of(precision, Op::kLinear), dtype_of(precision, Op::kAttention),
                               [](DType a, DType b) { return levels_above(a) < levels_above(b); });
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles) {
      if (const auto format = precision.linear.at(product, role)) return fmt::format("{} in {}", name(*format), dtype);
    }
  }
  return fmt::format("{}", dtype);
}

}  // namespace mantissa
