// ProductionGuide: a training in a recommended precision, with signals to watch, practices and fallbacks.
#pragma once

#include "tools/lab/advise/measurement.h"

namespace mantissa {

struct ProductionGuide {
  Config config{};  // trains in the precision, with probes, evaluation and checkpoints, and a ladder to the one above
  // precision, above (may be null), measured_thresholds (false: too few steps or infinite norms, so no thresholds);
  //   monitor: fields, watch. "step.loss" is of metrics.jsonl, "mantissa_loss" of metrics.prom, "probes.amax" of
  //   probes.mtp
  //   practices, fallbacks: setting, value in `config`, why
  Json figures{};
};

// `above`: the level to which the ladder goes up; nullptr: no ladder. ConfigError as for a training, where the
// configuration's own settings do not go with these.
ProductionGuide production_guide(const Config& config, const Measurement& measurement, const MeasuredPrecision& chosen,
                                 const MeasuredPrecision* above);

// Thresholds of precision.adaptive at which no step of the healthy runs was even uneasy, at least 1 nat and 4 times: a
// loss that still falls hides its random rises. Only steps after a full window of AdaptiveOptions count. 0 means no
// threshold: fewer steps than kFewestCompared, or a norm infinitely many times the others.
struct SignalThresholds {
  double loss_rise = 0.0, norm_factor = 0.0;
  int64_t compared = 0;  // steps
  bool has_infinite = false;

  bool is_known() const { return loss_rise > 0.0; }
};
inline constexpr int64_t kFewestCompared = 900;  // 3 seeds of 400 steps
SignalThresholds thresholds_of(const Json& runs);

void add_guide(const Json& figures, ReportText& text);

}  // namespace mantissa
