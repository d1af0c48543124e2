// What each option of each place costs: steps of the whole model are predicted with this option alone in place of the
// 16-bit one, so that casts, transposes and what neighbours gain or lose by it count.
#pragma once

#include <vector>

#include "tools/lab/advise/plan/plan_places.h"
#include "tools/lab/advise/target.h"

namespace mantissa {

struct StepCost {
  double seconds = 0.0;
  double bytes = 0.0;         // of a rank
  double sent_bytes = 0.0;    // by a rank to others in a step
  double device_bytes = 0.0;  // that its device has; 0: not known

  bool fits() const { return device_bytes <= 0.0 || bytes <= device_bytes; }
};

// A step of the configuration on the target.
StepCost step_cost(const Config& config, const Target& target, int ranks);

struct OptionCosts {
  StepCost low;                                // of the step in 16 bits throughout, shared formats as configured
  std::vector<std::vector<StepCost>> changes;  // by place and option: against `low`, of either sign
};
// Layers that differ in the number of their block alone are taken to cost the same.
OptionCosts option_costs(const Config& config, DType low, const std::vector<PlannedPlace>& places, const Target& target,
                         int ranks);

}  // namespace mantissa
