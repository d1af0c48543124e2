#include "tools/train/step_report.h"

#include <fmt/format.h>

namespace mantissa {

std::string StepReport::skip_reason(const ParameterSet& parameters) const {
  if (applied) return "";
  if (culprit) return fmt::format("the loss is not finite: {}", *culprit);
  if (!offender)
    return fmt::format("the gradient is not finite after unscaling: the loss scale {:g} is too small", scale);
  const char* kind = offender->is_nan ? "NaN" : "Inf";
  const Parameter& parameter = parameters[offender->parameter];
  if (offender->rank < 0) {
    return fmt::format("gradient {}[{}] is {} after summing over ranks, each rank's own was finite", parameter.name,
                       offender->element, kind);
  }
  return fmt::format("gradient {}[{}] is {} on rank {}", parameter.name, offender->element, kind, offender->rank);
}

}  // namespace mantissa
