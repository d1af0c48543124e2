// From a configuration to a plan: trains a little, tries what layers share and analyses how sensitive layers are,
// prices the options, searches, and trains the plan beside uniform precisions.
#pragma once

#include <string>

#include "tools/lab/advise/plan/plan_advice.h"
#include "tools/lab/advise/plan/shared_options.h"

namespace mantissa {

struct PlanRunRequest {
  PlanRequest plan;
  const Hardware* hardware = nullptr;  // nullptr: the device that is present, whose kernels are timed
  int ranks = 1;
  int64_t warm_up = 50;  // steps in fp32 before layers are looked at: first weights say little
  int64_t batches = 4;
  std::vector<std::string> state = {kMoments, kMasters, kWire};  // beside layers, what is decided about
  ValidationOptions validation{};
};

struct FoundPlan {
  SensitivityAnalysis sensitivity;
  PlanAdvice advice;
};

// On the device that the configuration names, alone. Nothing is written. ConfigError as for a training.
FoundPlan find_plan(const PlanRunRequest& request, const std::string& title, const Config& config);

}  // namespace mantissa
