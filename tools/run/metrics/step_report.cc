#include "tools/run/metrics/step_report.h"

#include <fmt/core.h>

namespace mantissa {
namespace {

// "gradient blocks.0.mlp.up.weight[7] is Inf on rank 1".
std::string describe(const Offender& offender, const ParameterSet& parameters) {
  const char* kind = offender.is_nan ? "NaN" : "Inf";
  const Parameter& parameter = parameters[offender.parameter];
  if (offender.rank < 0) {
    return fmt::format("gradient {}[{}] is {} after summing over ranks, each rank's own was finite", parameter.name,
                       offender.element, kind);
  }
  return fmt::format("gradient {}[{}] is {} on rank {}", parameter.name, offender.element, kind, offender.rank);
}

}  // namespace

std::string state_fault_reason(const std::string& fault) {
  return fmt::format("masters or moments are not finite, which no later step repairs: {}",
                     fault.empty() ? "a magnitude beyond the range of bf16" : fault);
}

std::string StepReport::skip_reason(const ParameterSet& parameters) const {
  if (applied) return "";
  if (!verdict.state_finite) return state_fault_reason(culprit.value_or(""));
  if (spike) return *spike;
  if (!verdict.loss_finite) {
    return fmt::format("the loss is not finite: {}",
                       culprit.value_or("every op's output was finite when the batch was run again; the loss itself "
                                        "overflowed in its sum"));
  }
  if (!offender) {
    return fmt::format("the gradient is not finite after unscaling: the loss scale {:g} is too small", scale);
  }
  const std::string where = describe(*offender, parameters);
  const std::string scaled = scale == 1.0f ? std::string() : fmt::format(" with the loss scale {:g}", scale);
  if (culprit) return fmt::format("the gradient is not finite{}: {}; {}", scaled, *culprit, where);
  if (!hunted) return where;
  return fmt::format("{}{}; every op of the backward pass made finite gradients when the batch was run again", where,
                     scaled);
}

std::string StepReport::advice(const ScalerConfig& scaler) const {
  constexpr const char* kPrecision = "a lower optimizer.lr, or fp32 for the layer named (precision.rules)";
  if (!verdict.state_finite) return kStateFaultAdvice;
  if (spike) return fmt::format("look at the data of this step, or try {}", kPrecision);
  if (!verdict.loss_finite || scale == 1.0f) return fmt::format("try {}", kPrecision);
  if (verdict.gradients_finite) {
    return fmt::format("the loss scale {:g} is too small: raise {}", scale,
                       scaler.mode == ScalerMode::kDynamic ? "scaler.min_scale" : "scaler.init_scale");
  }
  if (event == ScalerEvent::kBackedOff || event == ScalerEvent::kHysteresisConsumed) {
    return fmt::format("if the loss scale is still on its way down, lower scaler.init_scale; else try {}", kPrecision);
  }
  if (scaler.mode == ScalerMode::kDynamic) {
    return fmt::format("the loss scale cannot go below {:g}: lower scaler.min_scale; if that does not help, try {}",
                       scale, kPrecision);
  }
  return fmt::format(
      "the loss scale {:g} may be too large: lower scaler.init_scale, or give scaler.mode=dynamic; if that does not "
      "help, try {}",
      scale, kPrecision);
}

}  // namespace mantissa
