// StepReport: what happened in a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "amp/grad_scaler.h"
#include "comm/verdict_reduction.h"

namespace mantissa {

// Alike on every rank, except for the time.
struct StepReport {
  int64_t step = 0;
  double loss = 0.0;       // mean over the non-ignored tokens of the global batch, nats
  double grad_norm = 0.0;  // of the unscaled gradient of that mean, before clipping
  double clip_factor = 1.0;
  double learning_rate = 0.0;
  int64_t tokens = 0;       // non-ignored
  float scale = 1.0f;       // used in this step
  float next_scale = 1.0f;  // after it
  ScalerEvent event = ScalerEvent::kUnchanged;
  bool applied = true;
  Verdict verdict;
  std::optional<Offender> offender;  // of non-finite gradients
  bool hunted = false;               // whether the op that made such gradients was looked for
  // Of a loss that is not finite, or of gradients that were hunted: the first op that made something that was not, and
  // of what; nothing if every op's work was finite.
  std::optional<std::string> culprit;
  std::vector<std::string> overflowed_layers{};  // whose precision that had
  // Where it was measured, and the update leads downhill: curvature_of() in amp/adaptive_precision.h.
  std::optional<double> curvature{};
  double seconds = 0.0;

  // Why the step was skipped, in one line; empty when it was applied.
  std::string skip_reason(const ParameterSet& parameters) const;
  // What to change where steps like this, a skipped one, end a run.
  std::string advice(const ScalerConfig& scaler) const;
};

}  // namespace mantissa
