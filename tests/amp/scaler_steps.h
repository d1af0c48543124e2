// Helpers of the GradScaler tests: whole steps with a given outcome.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "amp/grad_scaler.h"

namespace mantissa::testing {

// One whole step.
inline ScalerEvent run(GradScaler& scaler, StepOutcome outcome) {
  scaler.scale();
  scaler.unscale();
  EXPECT_EQ(scaler.step(outcome), outcome == StepOutcome::kClean);
  return scaler.update();
}

inline std::vector<ScalerEvent> run(GradScaler& scaler, int count, StepOutcome outcome) {
  std::vector<ScalerEvent> events(static_cast<size_t>(count));
  for (ScalerEvent& event : events) event = run(scaler, outcome);
  return events;
}

// A small dynamic scaler: starts at 1024 and grows after three clean steps.
inline ScalerConfig small_dynamic_config() {
  ScalerConfig config;
  config.init_scale = 1024.0f;
  config.growth_interval = 3;
  return config;
}

inline ScalerConfig small_dynamic_config(void (*change)(ScalerConfig& config)) {
  ScalerConfig config = small_dynamic_config();
  change(config);
  return config;
}

}  // namespace mantissa::testing
