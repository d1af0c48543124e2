// The report of recommendations: figures, text, and the configuration for production.
#pragma once

#include <optional>

#include "tools/lab/advise/production_guide.h"
#include "tools/lab/advise/recommendation.h"

namespace mantissa {

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
