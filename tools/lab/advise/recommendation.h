// Recommendation: the fastest precision on a device, by prediction, among precisions that were measured as harmless.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/lab/advise/advice.h"
#include "tools/lab/advise/production_guide.h"

namespace mantissa {

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
