// The values that decisions of an analysis are ranked by.

#include <cmath>
#include <limits>

#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

namespace mantissa {

std::vector<NamedScore> SensitivityAnalysis::scores() const {
  const auto column = [this](const char* title, auto&& of) {
    NamedScore score{.name = title, .values = {}};
    for (const DecisionScores& one : decisions) {
      if (one.refusal.empty()) score.values.push_back(of(one));
    }
    return score;
  };
  // A score that is not finite is worse than all others; an unmeasured score stays NaN.
  const auto worst = [](double value) { return std::isnan(value) ? std::numeric_limits<double>::infinity() : value; };
  const auto if_seen = [&](const DecisionScores& one, double value) {
    return std::isnan(one.risk.overflow) ? kUnknown : worst(value);
  };
  return {
      column("loss", [&](const DecisionScores& one) { return worst(one.loss_magnitude.mean); }),
      column("fisher", [&](const DecisionScores& one) { return if_seen(one, one.fisher.mean); }),
      column("hessian",
             [&](const DecisionScores& one) {
               const double score = std::abs(one.hessian.mean);
               if (probes == 0) return kUnknown;
               return lowers_forward_product(one.decision) ? if_seen(one, score) : worst(score);
             }),
      column("gradient", [&](const DecisionScores& one) { return worst(one.gradient_change.mean); }),
      column("update", [&](const DecisionScores& one) { return worst(one.parameter_change.mean); }),
      column("information lost", [&](const DecisionScores& one) { return if_seen(one, -one.information.mean); }),
      column("risk", [&](const DecisionScores& one) { return if_seen(one, one.risk.sum()); }),
  };
}

}  // namespace mantissa
