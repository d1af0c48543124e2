// ProductionGuide: a training in a recommended precision, with what to watch, what to keep to, and where to fall back.
#pragma once

#include "tools/lab/advise/measurement.h"

namespace mantissa {

struct ProductionGuide {
  Config config{};  // trains in the precision, with probes, evaluation and checkpoints, and a ladder to the one above
  // precision, above (null: none), measured_thresholds (false: the runs were too short, and they are the documents');
  //   monitor: fields, watch. "step.loss" is of metrics.jsonl, "mantissa_loss" of metrics.prom, "probes.amax" of
  //   probes.mtp
  //   practices, fallbacks: setting, value in `config`, why
  Json figures{};
};

// `above`: the level to which the ladder goes up; nullptr: no ladder. ConfigError as for a training, where the
// configuration's own settings do not go with these.
ProductionGuide production_guide(const Config& config, const Measurement& measurement, const MeasuredPrecision& chosen,
                                 const MeasuredPrecision* above);

// Thresholds of precision.adaptive at which no step of the runs was even uneasy. Those of docs/precision.md if no run
// is longer than AdaptiveOptions::warmup.
struct SignalThresholds {
  double loss_rise = 0.5, norm_factor = 4.0;
  bool are_measured = false;
};
SignalThresholds thresholds_of(const Json& runs);

void add_guide(const Json& figures, ReportText& text);

}  // namespace mantissa
