// Recommendation: the fastest precision on a device, by prediction, among precisions that were measured as harmless.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/config/config.h"
#include "tools/lab/advise/advice.h"
#include "tools/run/report/report.h"

namespace mantissa {

// ---- Measurement: a comparison of precisions as `mantissa compare --json` wrote it, to choose a precision by
// (measurement.cc).

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
// such a comparison, without figures that a guide needs, or of another model family or sequence length than the
// configuration's.
Measurement read_measurement(const std::string& path, const Config& config);

// By the lowest precision of any layer; more is less precise. fp16 is below bf16, as for precision.fallback. Formats of
// 8 bits are alike. With rules or a pattern that keeps layers high, a precision is above its uniform form.
int coarseness(const PrecisionConfig& precision, int64_t model_blocks);

// ---- ProductionGuide: a training in a recommended precision, with signals to watch, practices and fallbacks
// (production_guide.cc).

struct ProductionGuide {
  Config config{};  // trains in the precision, with probes, evaluation and checkpoints, and a ladder to the one above
  // precision, above (may be null), measured_thresholds (false: SignalThresholds::why_none);
  //   monitor: fields, watch. "step.loss" is of metrics.jsonl, "mantissa_loss" of metrics.prom, "probes.amax" of
  //   probes.mtp
  //   practices, fallbacks: setting, value in `config`, why
  Json figures{};
};

// `above`: the level to which the ladder goes up; nullptr: no ladder. ConfigError as for a training, where the
// configuration's own settings do not go with these.
ProductionGuide production_guide(const Config& config, const Measurement& measurement, const MeasuredPrecision& chosen,
                                 const MeasuredPrecision* above);

// Thresholds of precision.adaptive for a training of so many steps that is like the measured healthy runs. Loss and
// norm have kFalseAlarm / 2 each. A threshold is the largest of:
//   - level_of() of the values of all runs, logarithms for norms;
//   - the least at which no measured step was even uneasy: twice the largest rise, 1 + 2 (largest factor - 1);
//   - 1 nat, 4 times.
// Only steps after a full window of AdaptiveOptions count, there and in the run: references of fewer steps scatter
// more. 0 means no threshold: fewer steps than kFewestCompared, a run no longer than the window, or values that cannot
// be compared.
struct SignalThresholds {
  double loss_rise = 0.0, norm_factor = 0.0;
  int64_t compared = 0;    // steps
  std::string why_none{};  // why there is no threshold
  // Shares of the measured steps whose norm would have reached norm_factor if it had been so many times as large.
  double tenfold = 0.0, hundredfold = 0.0;

  bool is_known() const { return loss_rise > 0.0; }
};
inline constexpr int64_t kFewestCompared = 900;  // 3 seeds of 400 steps
inline constexpr double kFalseAlarm = 0.05;      // at most, in a run, if tails go on as level_of() has them
SignalThresholds thresholds_of(const Json& runs, int64_t steps);

// The level that the largest of `steps` further values exceeds with at most this probability, by the law of values
// above a high one, u: P(X > u + x) = k / n exp(-x / s). This is peaks over threshold with an exponential tail
// (Pickands, Annals of Statistics 3, 1975). Logarithms of Pareto values have it exactly (Hill, same volume), of
// lognormal values a lighter tail. k of the n values are above u, by s on average; s counts at its upper 95 % limit:
//   u + s 2 k / chi-squared(5 %, 2 k degrees) ln(steps k / (n probability))
// The largest level over k = n / 10, n / 20 and n / 50 counts, since tails may be heavier farther out. `values`: at
// least 50.
double level_of(std::vector<double> values, int64_t steps, double probability);

void add_guide(const Json& figures, ReportText& text);

// A lower precision is worth it if it is predicted to be so many times as fast. Predicted steps were within 7 % of
// measured ones (docs/results/performance_model.md).
inline constexpr double kLeastGain = 1.07;

// Names are those of Advice::evaluations.
struct Recommendation {
  Advice advice{};        // on one device
  std::string chosen{};   // empty: no harmless precision runs there
  std::string above{};    // the next more precise harmless precision; may be empty
  std::string fastest{};  // harmless; may differ from `chosen` if its gain is less than kLeastGain
  // By rising time: predicted kLeastGain times as fast as `chosen`; everything that runs if `chosen` is empty.
  std::vector<std::string> unclear{}, damaged{}, unmeasured{};
  std::vector<std::string> emulated{};  // measured, without units on the device, and not so much faster
};

// The configuration in each measured precision, under its measured name, then the unmeasured ones of candidates_of().
// The configuration itself is included. It is called "as configured" if another measured precision has its name.
std::vector<Candidate> candidates_of(const Config& config, const Measurement& measurement);

// Chooses among harmless precisions with less than kLeastGain times the time of the fastest: the most precise, then the
// faster. fp64 is never `above`: no run can change to it. fp16 is `above` only a precision with fp16, since it has less
// range than others.
Recommendation recommend(Advice advice, const Measurement& measurement, int64_t model_blocks);

// ---- The report: figures, text, and the configuration for production.

struct RecommendationReport {
  std::string title{};  // the configuration's name
  int64_t steps = 0;    // that it trains
  Measurement measurement{};
  std::vector<Recommendation> devices{};
  std::optional<ProductionGuide> guide{};  // for a single device, where something is recommended
};

RecommendationReport report_recommendations(const std::string& title, const Config& config, Measurement measurement,
                                            std::vector<Advice> devices);

//   model, parameters, steps, ranks, least_gain
//   measured: file, model, parameters, tokens_per_step, steps, seeds, baseline, margin, level, differences
//   devices: hardware (null: the present one), title, verdict (sentences); names of precisions: chosen, above, fastest,
//     unclear, damaged, unmeasured, emulated
//     precisions: name, verdict (null: not measured), difference, why, runs, fits, step_seconds, speedup, reason
//   guide: ProductionGuide::figures, or null
Json to_json(const RecommendationReport& report);
ReportText to_text(const RecommendationReport& report);
// For `mantissa train`, and for one device: the guide's configuration, with the report's sentences as comments.
// ConfigError if nothing is recommended.
std::string to_production_yaml(const RecommendationReport& report);

}  // namespace mantissa
