// Target: a device that steps are predicted for, present or not, and the step that it has to do.
#pragma once

#include <string>

#include "tools/lab/advise/prediction.h"
#include "tools/train/dry_run.h"

namespace mantissa {

struct Target {
  std::string title;
  CostModel* costs = nullptr;
  const Hardware* hardware = nullptr;  // of the table; nullptr: the device that is present
  Fp8GemmSupport fp8_gemm_support = Fp8GemmSupport::kNone;
  Backend* packing = nullptr;  // as walk_calls() has it
  double memory_bytes = 0;     // 0: not known
};

// A device that is not here. Refers to both.
Target absent_target(const Hardware& hardware, CostModel& costs);

struct TargetStep {
  MemoryTable memory;  // of a rank
  StepCalls calls;
};

// A step of the configuration on one of `ranks` such devices, whatever device the configuration names. ConfigError as
// predict_memory_table().
TargetStep step_on(const Target& target, Config config, int ranks);

}  // namespace mantissa
