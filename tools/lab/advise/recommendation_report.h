// The report of recommendations: figures, text, and the configuration for production.
#pragma once

#include "tools/lab/advise/production_guide.h"
#include "tools/lab/advise/recommendation.h"

namespace mantissa {

struct RecommendationReport {
  std::string title{};  // the configuration's name
  Measurement measurement{};
  std::vector<Recommendation> devices{};
  std::vector<ProductionGuide> guides{};  // one for each pair of chosen precision and the one above
};

RecommendationReport report_recommendations(const std::string& title, const Config& config, Measurement measurement,
                                            std::vector<Advice> devices);

//   model, parameters, ranks, least_gain; measured: file, model, parameters, steps, seeds, baseline, margin,
//   differences; devices: hardware (null: the present one), title, chosen, above, fastest, unclear, damaged,
//   unmeasured, emulated
//     (names), verdict (sentences), precisions: name, verdict (null: not measured), difference, why, runs, fits,
//     step_seconds, speedup, reason
//   guides: ProductionGuide::figures
Json to_json(const RecommendationReport& report);
ReportText to_text(const RecommendationReport& report);
// For `mantissa train`: the configuration of the only guide, with the report's sentences as comments. ConfigError if
// there are several devices, or nothing is recommended.
std::string to_production_yaml(const RecommendationReport& report);

}  // namespace mantissa
