#include "tools/lab/advise/plan/score_allocation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/check.h"
#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr std::string_view kScoreNames[] = {"loss", "fisher", "hessian", "mi", "entropy"};

double bits_of(const std::string& format) {
  if (format == "bf16" || format == "fp16") return 16.0;
  return format.starts_with("nvfp4") ? 4.0 : 8.0;
}

// NaN if it is not known.
double harm_of(DamageScore score, const DecisionScores& one) {
  if (score == DamageScore::kLoss) return one.loss.mean;
  if (score == DamageScore::kFisher) return one.fisher.mean;
  if (score == DamageScore::kHessian) return std::abs(one.hessian.mean);
  if (score == DamageScore::kInformation) return std::log2(kInformationBins) - one.information.mean;
  return (one.entropy.mean + std::log2(kBinsPerDeviation)) * (1.0 - bits_of(one.decision.format) / 32.0);
}

}  // namespace

std::string_view name(DamageScore score) { return kScoreNames[static_cast<size_t>(score)]; }

DamageScore parse_damage_score(const std::string& text) {
  const auto found = std::ranges::find(kScoreNames, text);
  if (found != std::end(kScoreNames)) return static_cast<DamageScore>(found - std::begin(kScoreNames));
  throw ConfigError(fmt::format("--damage: expected one of {}, got '{}'", fmt::join(kScoreNames, ", "), text));
}

OptionValues score_damages(DamageScore score, const SensitivityAnalysis& analysis, DType low,
                           const std::vector<PlannedPlace>& places) {
  std::map<std::string, double> largest;  // by format
  for (const DecisionScores& one : analysis.decisions) {
    if (const double harm = harm_of(score, one); one.refusal.empty() && std::isfinite(harm)) {
      double& most = largest[one.decision.format];
      most = std::max(most, harm);
    }
  }
  OptionValues harms;
  for (const PlannedPlace& place : places) {
    MANTISSA_CHECK(place.is_layer(), "[advise] {} has no scores", place.name());
    std::vector<double>& of_options = harms.emplace_back();
    for (const PlaceOption& option : place.options) {
      double sum = 0.0;
      for (const PrecisionDecision& decision : decisions_of(place, option, low)) {
        const auto found = std::ranges::find(analysis.decisions, decision, &DecisionScores::decision);
        MANTISSA_CHECK(found != analysis.decisions.end(), "[advise] '{}' was not analysed", name(decision));
        const double harm = harm_of(score, *found);
        sum += std::max(0.0, std::isfinite(harm) ? harm : largest[decision.format]);
      }
      of_options.push_back(sum);
    }
  }
  return harms;
}

SearchResult allocate(const std::string& solver, const PlanProblem& problem, const PlanGoal& goal,
                      const OptionValues& harms, uint64_t seed) {
  PlanProblem scored = problem;
  for (size_t i = 0; i < scored.size(); ++i) {
    for (size_t option = 0; option < scored[i].options.size(); ++option) {
      scored[i].options[option].damage = harms[i][option];
    }
  }
  SearchResult result = solve(solver, scored, goal, {.seed = seed});
  result.totals = evaluate(problem, result.plan);
  return result;
}

}  // namespace mantissa
