#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/base/log.h"
#include "tools/lab/analyze/sensitivity/decision_passes.h"

namespace mantissa {
namespace {

Estimate hessian_score(const std::vector<DecisionPass>& passes, const HessianProbes& probes, double level,
                       const ParameterSet& parameters) {
  std::vector<double> changes(static_cast<size_t>(parameters.size()));
  for (const DecisionPass& pass : passes) {
    for (size_t i = 0; i < changes.size(); ++i) {
      changes[i] += pass.change_squares[i] / static_cast<double>(passes.size());
    }
  }
  std::vector<double> values;  // of each probe
  for (const std::vector<double>& traces : probes.traces) {
    double sum = 0.0;
    for (size_t i = 0; i < changes.size(); ++i) {
      sum += traces[i] / static_cast<double>(parameters[static_cast<int>(i)].numel()) * changes[i] / 2.0;
    }
    values.push_back(sum);
  }
  return estimate(values, level);
}

// Every batch gets as many of the probes up to each look. Collective.
HessianProbes probe_until_known(const HessianGoal& goal, const std::vector<int64_t>& batch_steps, DecisionPasses& found,
                                Session& session) {
  HessianProbes probes;
  const auto batches = std::ssize(batch_steps);
  const std::vector<double> steps = hessian_steps(session.sharded);
  const auto is_wide = [&](const std::vector<DecisionPass>& passes) {
    return passes.front().refusal.empty() &&
           !goal.is_met(hessian_score(passes, probes, goal.level(), session.runtime.parameters));
  };
  int64_t made = 0;
  for (const int64_t look : goal.looks()) {
    for (int64_t batch = 0; batch < batches; ++batch) {
      const int64_t begin = made + (look - made) * batch / batches, end = made + (look - made) * (batch + 1) / batches;
      if (begin == end) continue;
      found.passes.load(batch_steps[static_cast<size_t>(batch)]);
      probe_hessian(found.passes, steps, static_cast<int>(begin), static_cast<int>(end), probes);
    }
    made = look;
    const auto wide = static_cast<double>(std::ranges::count_if(found.results, is_wide));
    log_info("sensitivity: {} of the Hessian", counted(made, "probe"));
    // Equal on all ranks already; the sum ensures that no rank goes on alone.
    if (sum_over_ranks({wide}, session.sharded.communicator)[0] == 0.0) break;
  }
  return probes;
}

DecisionScores scores_of(const PrecisionDecision& decision, const std::vector<DecisionPass>& passes,
                         const SensitivityRequest& request, const HessianProbes& probes,
                         const ParameterSet& parameters) {
  DecisionScores scores{.decision = decision, .refusal = passes.front().refusal};
  if (!scores.refusal.empty()) return scores;
  const auto over_batches = [&passes](auto&& of) {
    std::vector<double> values;
    for (const DecisionPass& pass : passes) values.push_back(of(pass));
    return estimate(values);
  };
  scores.loss = over_batches([](const DecisionPass& pass) { return pass.loss; });
  scores.loss_magnitude = over_batches([](const DecisionPass& pass) { return std::abs(pass.loss); });
  scores.update_loss = over_batches([](const DecisionPass& pass) { return pass.update_loss; });
  scores.gradient_change = over_batches([](const DecisionPass& pass) { return pass.gradient_change; });
  scores.parameter_change = over_batches([](const DecisionPass& pass) { return pass.parameter_change; });
  scores.fisher = over_batches([](const DecisionPass& pass) { return pass.fisher; });
  scores.hessian = hessian_score(passes, probes, request.hessian_goal().level(), parameters);
  if (!passes.front().local.seen) return scores;
  scores.entropy = over_batches([](const DecisionPass& pass) { return pass.local.entropy; });
  scores.information = over_batches([](const DecisionPass& pass) { return pass.local.information; });
  const auto mean = [&](double OperandRisk::*share) {
    return over_batches([share](const DecisionPass& pass) { return pass.local.risk.*share; }).mean;
  };
  scores.risk = {mean(&OperandRisk::overflow), mean(&OperandRisk::underflow), mean(&OperandRisk::precision)};
  std::optional<RiskThresholds> thresholds = measured_thresholds(decision);
  if (request.low_risk) {
    if (!thresholds) thresholds.emplace();
    thresholds->low = *request.low_risk;
    thresholds->high = *request.high_risk;
  }
  scores.band = band_of(scores.risk, thresholds);
  return scores;
}

}  // namespace

std::vector<NamedScore> SensitivityAnalysis::scores() const {
  std::vector<NamedScore> found;
  for (const char* const name : {"loss", "fisher", "hessian", "gradient", "update", "information lost", "risk"}) {
    found.push_back({.name = name});
  }
  // A score that is not finite is worse than all others; an unmeasured score stays NaN.
  const auto worst = [](double value) { return std::isnan(value) ? HUGE_VAL : value; };
  for (const DecisionScores& one : decisions) {
    if (!one.refusal.empty()) continue;
    const bool is_seen = !std::isnan(one.risk.overflow), needs_sample = lowers_forward_product(one.decision);
    const auto if_seen = [&](double value) { return is_seen ? worst(value) : kUnknown; };
    const double hessian = std::abs(one.hessian.mean);
    const double values[] = {worst(one.loss_magnitude.mean),
                             if_seen(one.fisher.mean),
                             probes == 0    ? kUnknown
                             : needs_sample ? if_seen(hessian)
                                            : worst(hessian),
                             worst(one.gradient_change.mean),
                             worst(one.parameter_change.mean),
                             if_seen(-one.information.mean),
                             if_seen(one.risk.sum())};
    for (size_t i = 0; i < found.size(); ++i) found[i].values.push_back(values[i]);
  }
  return found;
}

SensitivityAnalysis analyze_sensitivity(const SensitivityRequest& request, Session& session) {
  using Clock = std::chrono::steady_clock;
  DecisionPasses found(request, session);
  const std::vector<int64_t> steps = found.passes.steps_with_targets(request.batches);
  const auto batches = std::ssize(steps);
  std::optional<ProgressBar> progress(std::in_place, "sensitivity: decisions x batches",
                                      std::ssize(found.decisions) * batches);
  for (const int64_t step : steps) {
    const auto begin = Clock::now();
    found.run(step, *progress);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    log_info("sensitivity: batch {} of {}: loss {:.4f}, {} in {:.1f} s", found.losses.size(), batches,
             found.losses.back(), counted(std::ssize(found.decisions), "decision"), seconds);
  }
  progress.reset();
  const HessianProbes probes = probe_until_known(request.hessian_goal(), steps, found, session);
  SensitivityAnalysis analysis{.title = request.target,
                               .config = session.config,
                               .ranks = session.ranks(),
                               .step = session.next_step,
                               .request = request,
                               .batches = batches,
                               .learning_rate = found.passes.learning_rate(),
                               .fp16_scale = found.fp16_scale,
                               .probes = static_cast<int64_t>(probes.traces.size()),
                               .loss = estimate(found.losses),
                               .parameters = found.parameter_scores(probes, request.hessian_goal().level())};
  if (!request.score.empty()) {
    analysis.layers = found.layer_scores(parse_score_weights(request.score), analysis.parameters);
  }
  // A loss in fp32 is known to a unit in its last place, and a change of it is made of two. Unknown intervals stay NaN.
  const double rounding = 2.0 * std::numeric_limits<float>::epsilon() * analysis.loss.mean;
  for (size_t i = 0; i < found.decisions.size(); ++i) {
    DecisionScores& one = analysis.decisions.emplace_back(
        scores_of(found.decisions[i], found.results[i], request, probes, session.runtime.parameters));
    for (Estimate* loss : {&one.loss, &one.update_loss}) loss->half_width = std::max(loss->half_width, rounding);
  }
  return analysis;
}

}  // namespace mantissa
