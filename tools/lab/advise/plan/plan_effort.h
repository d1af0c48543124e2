// PlanEffort: the work of finding and validating a plan, known before it begins.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/advise/plan/plan_advice.h"

namespace mantissa {

// Counted in training steps of the configuration; a loss alone counts as a third of one.
struct PlanEffort {
  int64_t decisions = 0;  // of the sensitivity analysis
  double warm_up_steps = 0;
  double layer_steps = 0;       // damages of layers
  double state_steps = 0;       // damages of formats that layers share
  double search_steps = 0;      // of the differentiable solver
  double validation_steps = 0;  // runs of the plan and beside it
  int64_t turns = 0;            // of timing these side by side, each of a step and kTurnSeconds at least
  double bytes = 0;             // of this process, at its most

  double steps() const {
    return warm_up_steps + layer_steps + state_steps + search_steps + validation_steps + static_cast<double>(turns);
  }
  // At this time of a step; the timing of kernels comes on top, mostly less than a minute.
  double seconds(double of_step) const;
};

// `places`: as find_plan() has them. ConfigError as predict_memory_table().
PlanEffort plan_effort(const PlanRunRequest& request, const Config& config, const std::vector<PlannedPlace>& places);

// "about 412 steps of 0.21 s, 40 MiB of memory, 0:01:27 (h:mm:ss)".
std::string to_text(const PlanEffort& effort, double seconds_of_step);

inline constexpr double kMostPlanSeconds = 3600.0;
// The errors name the largest costs and the options to reduce them. MemoryError if this machine computes and its
// memory, `total_bytes`, is too small. ConfigError beyond kMostPlanSeconds.
void require_memory_for(const PlanEffort& effort, double total_bytes);
void require_time_for(const PlanEffort& effort, double seconds_of_step);

// Seconds of a training step from the session's point, by a forward and a backward pass. The session stays as it is.
// Collective.
double time_of_step(Session& session);

}  // namespace mantissa
