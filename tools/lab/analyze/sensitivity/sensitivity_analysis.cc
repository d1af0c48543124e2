#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/lab/analyze/sensitivity/decision_passes.h"
#include "tools/lab/analyze/sensitivity/hessian.h"

namespace mantissa {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Estimate kUnknown{kNaN, kNaN, kNaN};

template <typename Of>
Estimate estimate_of(const std::vector<DecisionPass>& passes, Of&& of) {
  std::vector<double> values;
  for (const DecisionPass& pass : passes) values.push_back(of(pass));
  return estimate(values);
}

PrecisionBand band_of(const OperandRisk& risk, const SensitivityRequest& request) {
  if (risk.sum() < request.low_risk) return PrecisionBand::kLow;
  return risk.sum() <= request.high_risk ? PrecisionBand::kMixed : PrecisionBand::kFp32;
}

void take_local(const std::vector<DecisionPass>& passes, const SensitivityRequest& request, DecisionScores& scores) {
  scores.entropy = scores.information = kUnknown;
  scores.risk = {.overflow = kNaN, .underflow = kNaN, .precision = kNaN};
  if (!passes.front().local.seen) return;
  scores.entropy = estimate_of(passes, [](const DecisionPass& pass) { return pass.local.entropy; });
  scores.information = estimate_of(passes, [](const DecisionPass& pass) { return pass.local.information; });
  const auto mean = [&](double OperandRisk::*share) {
    return estimate_of(passes, [share](const DecisionPass& pass) { return pass.local.risk.*share; }).mean;
  };
  scores.risk = {mean(&OperandRisk::overflow), mean(&OperandRisk::underflow), mean(&OperandRisk::precision)};
  scores.band = band_of(scores.risk, request);
}

// Of each probe of the Hessian.
Estimate hessian_score(const std::vector<DecisionPass>& passes, const HessianProbes& probes,
                       const ParameterSet& parameters) {
  if (probes.traces.empty()) return kUnknown;
  std::vector<double> moved(static_cast<size_t>(parameters.size()));
  for (const DecisionPass& pass : passes) {
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += pass.moved_squares[i] / static_cast<double>(passes.size());
  }
  std::vector<double> values;
  for (const std::vector<double>& traces : probes.traces) {
    double sum = 0.0;
    for (size_t i = 0; i < moved.size(); ++i) {
      sum += traces[i] / static_cast<double>(parameters[static_cast<int>(i)].numel()) * moved[i] / 2.0;
    }
    values.push_back(sum);
  }
  return estimate(values);
}

DecisionScores scores_of(const PrecisionDecision& decision, const std::vector<DecisionPass>& passes,
                         const SensitivityRequest& request, const HessianProbes& probes,
                         const ParameterSet& parameters) {
  DecisionScores scores{.decision = decision};
  scores.refusal = passes.front().refusal;
  if (!scores.refusal.empty()) {
    scores.loss = scores.loss_magnitude = scores.update_loss = scores.gradient_change = scores.parameter_change =
        scores.hessian = kUnknown;
    scores.fisher = scores.entropy = scores.information = kUnknown;
    return scores;
  }
  scores.loss = estimate_of(passes, [](const DecisionPass& pass) { return pass.loss; });
  scores.loss_magnitude = estimate_of(passes, [](const DecisionPass& pass) { return std::abs(pass.loss); });
  scores.update_loss = estimate_of(passes, [](const DecisionPass& pass) { return pass.update_loss; });
  scores.gradient_change = estimate_of(passes, [](const DecisionPass& pass) { return pass.gradient_change; });
  scores.parameter_change = estimate_of(passes, [](const DecisionPass& pass) { return pass.parameter_change; });
  scores.fisher = estimate_of(passes, [](const DecisionPass& pass) { return pass.fisher; });
  scores.hessian = hessian_score(passes, probes, parameters);
  take_local(passes, request, scores);
  return scores;
}

}  // namespace

const char* name(PrecisionBand band) {
  switch (band) {
    case PrecisionBand::kLow:
      return "low";
    case PrecisionBand::kMixed:
      return "mixed";
    case PrecisionBand::kFp32:
      break;
  }
  return "fp32";
}

std::vector<NamedScore> SensitivityAnalysis::scores() const {
  const auto column = [this](const char* title, auto&& of) {
    NamedScore score{.name = title, .values = {}};
    for (const DecisionScores& one : decisions) {
      if (one.refusal.empty()) score.values.push_back(of(one));
    }
    return score;
  };
  // What was computed of values that are not finite is worse than all else. What is not known stays NaN.
  const auto worst = [](double value) { return std::isnan(value) ? std::numeric_limits<double>::infinity() : value; };
  const auto if_seen = [&](const DecisionScores& one, double value) {
    return std::isnan(one.risk.overflow) ? kNaN : worst(value);
  };
  return {
      column("loss", [&](const DecisionScores& one) { return worst(one.loss_magnitude.mean); }),
      column("fisher", [&](const DecisionScores& one) { return if_seen(one, one.fisher.mean); }),
      column("hessian",
             [&](const DecisionScores& one) {
               const double score = std::abs(one.hessian.mean);
               if (request.probes == 0) return kNaN;
               return lowers_forward_product(one.decision) ? if_seen(one, score) : worst(score);
             }),
      column("gradient", [&](const DecisionScores& one) { return worst(one.gradient_change.mean); }),
      column("update", [&](const DecisionScores& one) { return worst(one.parameter_change.mean); }),
      column("information lost", [&](const DecisionScores& one) { return if_seen(one, -one.information.mean); }),
      column("risk", [&](const DecisionScores& one) { return if_seen(one, one.risk.sum()); }),
  };
}

SensitivityAnalysis analyze_sensitivity(const SensitivityRequest& request, Session& session) {
  DecisionPasses passes(decisions_of(session.config, request.formats, request.layers),
                        {.rows = request.rows, .max_elements = request.max_elements}, session);
  SensitivityAnalysis analysis{.title = request.target,
                               .config = session.config,
                               .ranks = session.ranks(),
                               .step = session.next_step,
                               .request = request,
                               .learning_rate = 0.0,
                               .fp16_scale = 1.0,
                               .loss = {},
                               .decisions = {},
                               .parameters = {}};
  const std::vector<double> steps = hessian_steps(session);
  std::vector<std::vector<DecisionPass>> found(passes.decisions().size());  // by decision, then batch
  std::vector<double> losses;
  HessianProbes probes;
  for (int64_t batch = 0; batch < request.batches; ++batch) {
    const BatchFindings findings = passes.run(session.next_step + batch);
    losses.push_back(findings.loss);
    for (size_t i = 0; i < found.size(); ++i) found[i].push_back(findings.decisions[i]);
    const int64_t begin = request.probes * batch / request.batches,
                  end = request.probes * (batch + 1) / request.batches;
    probe_hessian(passes.passes(), steps, static_cast<int>(begin), static_cast<int>(end), probes);
    log_info("sensitivity: batch {} of {}: loss {:.4f}, {} decisions in {:.1f} s", batch + 1, request.batches,
             findings.loss, found.size(), findings.seconds);
  }
  analysis.learning_rate = passes.passes().learning_rate();
  analysis.fp16_scale = passes.fp16_scale();
  analysis.loss = estimate(losses);
  for (size_t i = 0; i < found.size(); ++i) {
    analysis.decisions.push_back(
        scores_of(passes.decisions()[i], found[i], request, probes, session.runtime.parameters));
  }
  analysis.parameters = passes.parameter_scores(probes);
  return analysis;
}

}  // namespace mantissa
