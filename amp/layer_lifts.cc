#include "amp/layer_lifts.h"

#include <fmt/core.h>

namespace mantissa {
namespace {

DType raised(DType dtype) { return dtype == DType::kF16 ? DType::kBF16 : DType::kF32; }

// What an op whose setting is a dtype or `low` computes in; others go by their inputs.
DType dtype_of(const Precision& precision, Op op) {
  const auto index = static_cast<size_t>(op);
  if (precision.forced[index]) return *precision.forced[index];
  return precision.enabled && precision.rules[index] == CastRule::kLow ? precision.low : DType::kF32;
}

bool rounds(const Precision& precision, Op op) { return op == Op::kLinear && precision.linear.any(); }

void set_dtype(Precision& precision, Op op, DType dtype) {
  const auto index = static_cast<size_t>(op);
  precision.forced[index].reset();
  if (dtype == DType::kF32) {
    precision.rules[index] = CastRule::kFp32;
  } else {
    precision.forced[index] = dtype;
  }
}

// Linear layers, and what goes by them.
void lift_linear(Precision& precision) {
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

void lift_once(Precision& precision) {
  const DType attention = dtype_of(precision, Op::kAttention);
  lift_linear(precision);
  if (attention != DType::kF32) set_dtype(precision, Op::kAttention, raised(attention));
}

int levels_above(DType dtype) { return dtype == DType::kF16 ? 2 : dtype == DType::kBF16 ? 1 : 0; }

}  // namespace

void lift(Precision& precision, int levels) {
  for (int level = 0; level < levels; ++level) lift_once(precision);
}

int lift_room(const Precision& precision, Op op) {
  return (rounds(precision, op) ? 1 : 0) + levels_above(dtype_of(precision, op));
}

std::string describe_lift(const Precision& precision, Op op) {
  const DType dtype = dtype_of(precision, op);
  if (!rounds(precision, op)) return fmt::format("{}", dtype);
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles) {
      if (const auto format = precision.linear.at(product, role)) return fmt::format("{} in {}", name(*format), dtype);
    }
  }
  return fmt::format("{}", dtype);
}

}  // namespace mantissa
