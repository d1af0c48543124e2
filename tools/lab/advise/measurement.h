// Measurement: a comparison of precisions as `mantissa compare --json` wrote it, to choose a precision by.
#pragma once

#include <string>
#include <vector>

#include "tools/config/config.h"
#include "tools/run/report/report.h"

namespace mantissa {

enum class Damage : uint8_t {
  kNone,     // the baseline, or found equal or better
  kUnclear,  // inconclusive
  kSome,     // worse, or a run failed
};

struct MeasuredPrecision {
  std::string name{};  // in the comparison
  PrecisionConfig precision{};
  Damage damage = Damage::kSome;
  std::string verdict{};      // "baseline", "equal", "worse", …
  std::string why{};          // one line: why the damage is unclear, or how a run failed; else empty
  Json summary{};             // summary_of() in tools/lab/compare/precision_comparison.h
  Json runs = Json::array();  // with their steps
};

struct Measurement {
  std::string file{};
  std::string baseline{};
  std::string model{};  // in words
  int64_t steps = 0, seeds = 0;
  double level = 0.0, margin = 0.0;  // of the intervals, and in nats
  int64_t parameters = 0;            // of the measured model
  int64_t tokens_per_step = 0;
  std::vector<MeasuredPrecision> precisions{};
  // Settings, besides precision, in which the configuration's training differs: "model.width: 128 -> 768".
  std::vector<std::string> differences{};

  const MeasuredPrecision* find(const std::string& name) const;  // nullptr: not measured
};

// Leaves out untrained precisions, and precisions that change during a run: their steps have several speeds. Also
// leaves out plans whose training differs from the baseline's in more than precision. ConfigError for a file without
// such a comparison, or of another model family or sequence length than the configuration's.
Measurement read_measurement(const std::string& path, const Config& config);

// By the lowest precision of any layer; more is less precise. fp16 is below bf16, as for precision.fallback. Formats of
// 8 bits are alike. With rules or a pattern that keeps layers high, a precision is above its uniform form.
int coarseness(const PrecisionConfig& precision, int64_t model_blocks);

}  // namespace mantissa
