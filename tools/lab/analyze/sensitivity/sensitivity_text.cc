#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/lab/analyze/sensitivity/sensitivity_report.h"

namespace mantissa {
namespace {

std::string number(double value) { return std::isnan(value) ? "-" : fmt::format("{:.3g}", value); }

std::string with_interval(const Estimate& estimate) {
  if (std::isnan(estimate.mean)) return "-";
  return std::isnan(estimate.half_width) ? fmt::format("{:.2e}", estimate.mean)
                                         : fmt::format("{:.2e}±{:.0e}", estimate.mean, estimate.half_width);
}

std::string per_cent(double share) { return std::isnan(share) ? "-" : fmt::format("{:.3g}", 100.0 * share); }

// Those that were tried, the most sensitive first; what overflowed before all.
std::vector<const DecisionScores*> by_loss(const SensitivityAnalysis& analysis) {
  std::vector<const DecisionScores*> order;
  for (const DecisionScores& one : analysis.decisions) {
    if (one.refusal.empty()) order.push_back(&one);
  }
  const auto key = [](const DecisionScores* one) {
    return std::isnan(one->loss_magnitude.mean) ? INFINITY : one->loss_magnitude.mean;
  };
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) { return key(a) > key(b); });
  return order;
}

std::string verdict(const SensitivityAnalysis& analysis, const std::vector<const DecisionScores*>& order) {
  if (order.empty()) return "Nothing could be lowered: see below.\n";
  const DecisionScores& first = *order.front();
  std::string text;
  if (std::isnan(first.loss.mean)) {
    text = fmt::format("Most sensitive: {}: gradients or loss are not finite.\n", name(first.decision));
  } else if (std::isnan(first.loss.half_width)) {
    text = fmt::format("Most sensitive: {}: loss {:+.3g} nats, of one batch: inconclusive.\n", name(first.decision),
                       first.loss.mean);
  } else if (std::abs(first.loss.mean) <= first.loss.half_width) {
    text = fmt::format(
        "Most sensitive: {}: loss {:+.3g} nats, which its interval of ±{:.2g} does not tell from 0: "
        "inconclusive.\n",
        name(first.decision), first.loss.mean, first.loss.half_width);
  } else {
    text = fmt::format("Most sensitive: {}: loss {:+.3g} nats (95 % interval ±{:.2g}).\n", name(first.decision),
                       first.loss.mean, first.loss.half_width);
  }
  int bands[3] = {}, attentions = 0, too_large = 0;
  for (const DecisionScores* one : order) {
    if (!std::isnan(one->risk.overflow)) {
      ++bands[static_cast<size_t>(one->band)];
    } else {
      ++(one->decision.op == Op::kAttention ? attentions : too_large);
    }
  }
  text += fmt::format("By risk of an element (below {} low, up to {} mixed, above fp32): {} low, {} mixed, {} fp32",
                      analysis.request.low_risk, analysis.request.high_risk, bands[0], bands[1], bands[2]);
  if (attentions > 0) text += fmt::format(", {} without operands to look at (attention)", attentions);
  if (too_large > 0) {
    text +=
        fmt::format(", {} not looked at (products of more than {} elements)", too_large, analysis.request.max_elements);
  }
  return text + ".\n";
}

std::string decision_table(const std::vector<const DecisionScores*>& order) {
  size_t width = 10;
  for (const DecisionScores* one : order) width = std::max(width, place(one->decision).size());
  std::string text = fmt::format("{:<{}} {:<10} {:>15} {:>15} {:>14} {:>15} {:>9} {:>9} {:>7} {:>6} {:>22} {:>6}\n",
                                 "place", width, "format", "loss, nats", "after update", "Fisher", "Hessian, nats",
                                 "gradient", "update", "MI, bit", "h, bit", "over/under/subn., %", "band");
  for (const DecisionScores* one : order) {
    const OperandRisk& risk = one->risk;
    text += fmt::format(
        "{:<{}} {:<10} {:>15} {:>15} {:>14} {:>15} {:>9} {:>9} {:>7} {:>6} {:>22} {:>6}\n", place(one->decision), width,
        one->decision.format, with_interval(one->loss), with_interval(one->update_loss), with_interval(one->fisher),
        with_interval(one->hessian), number(one->gradient_change.mean), number(one->parameter_change.mean),
        number(one->information.mean), number(one->entropy.mean),
        fmt::format("{}/{}/{}", per_cent(risk.overflow), per_cent(risk.underflow), per_cent(risk.precision)),
        std::isnan(risk.overflow) ? "-" : name(one->band));
  }
  return text;
}

std::string correlation_table(const SensitivityAnalysis& analysis) {
  const std::vector<NamedScore> scores = analysis.scores();
  std::string text = fmt::format("{:<17}", "");
  for (const NamedScore& score : scores) text += fmt::format(" {:>17}", score.name);
  text += "\n";
  for (const NamedScore& row : scores) {
    text += fmt::format("{:<17}", row.name);
    for (const NamedScore& column : scores) {
      text += fmt::format(" {:>17}", number(rank_correlation(row.values, column.values)));
    }
    text += "\n";
  }
  return text;
}

std::string parameter_table(const SensitivityAnalysis& analysis) {
  size_t width = 10;
  for (const ParameterScores& one : analysis.parameters) width = std::max(width, one.name.size());
  std::string text = fmt::format("{:<{}} {:>10} {:>16} {:>14} {:>16} {:>22}\n", "parameter", width, "elements",
                                 "gradient, rms", "its variance", "Hessian's trace", "diagonal");
  for (const ParameterScores& one : analysis.parameters) {
    text += fmt::format("{:<{}} {:>10} {:>16} {:>14} {:>16} {:>22}\n", one.name, width, one.elements,
                        with_interval(one.gradient_rms), number(one.gradient_variance), with_interval(one.trace),
                        std::isnan(one.smallest_diagonal)
                            ? "-"
                            : fmt::format("{:.2e} to {:.2e}", one.smallest_diagonal, one.largest_diagonal));
  }
  return text;
}

}  // namespace

std::string to_text(const SensitivityAnalysis& analysis) {
  const std::vector<const DecisionScores*> order = by_loss(analysis);
  std::string text = verdict(analysis, order);
  text += fmt::format(
      "\n{}: weights of step {}, {} batches, {} probes of the Hessian, loss {}, learning rate {:.3g}, {} ranks\n\n",
      analysis.title, analysis.step, analysis.request.batches, analysis.request.probes, with_interval(analysis.loss),
      analysis.learning_rate, analysis.ranks);
  text += "What one product alone in lower precision does, against fp32 (means over batches, ± 95 % intervals):\n";
  text += decision_table(order);
  text += "\nRank correlations between the scores, over these decisions (Spearman):\n" + correlation_table(analysis);
  text += "\nParameters, exact:\n" + parameter_table(analysis);
  std::string refusals;
  for (const DecisionScores& one : analysis.decisions) {
    if (!one.refusal.empty()) refusals += fmt::format("  {}: {}\n", name(one.decision), one.refusal);
  }
  if (!refusals.empty()) text += "\nNot tried:\n" + refusals;
  return text;
}

}  // namespace mantissa
