#include "core/autograd/precision.h"

namespace mantissa {

std::optional<Op> parse_op(std::string_view text) {
  for (int index = 0; index < kOpCount; ++index) {
    if (kOps[index].name == text) return static_cast<Op>(index);
  }
  return std::nullopt;
}

AutocastState& autocast_state() {
  thread_local AutocastState state;
  return state;
}

DType compute_dtype(const Precision& precision, const AutocastState& scope, Op op, DType first, DType widest_input) {
  if (!scope.enabled.value_or(precision.enabled)) return widest_input;
  const auto index = static_cast<size_t>(op);
  if (!scope.dtype && precision.forced[index]) return *precision.forced[index];
  // By CastRule.
  const DType dtypes[] = {scope.dtype.value_or(precision.low), wide_of(precision.low), widest_input, first};
  return dtypes[static_cast<size_t>(precision.rules[index])];
}

LinearFormats linear_formats(const Precision& precision, const AutocastState& scope) {
  const bool as_configured = scope.enabled.value_or(precision.enabled) && !scope.dtype;
  return as_configured ? precision.linear : LinearFormats();
}

}  // namespace mantissa
