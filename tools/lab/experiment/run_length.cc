#include "tools/lab/experiment/run_length.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tools/lab/experiment/paired_comparison.h"

namespace mantissa {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kFewestSteps = 10;

using Steps = std::span<const TrainedStep>;

// The mean of finite losses from the share `begin` of the steps to the share `end`.
double mean_loss(Steps steps, double begin, double end) {
  const auto count = static_cast<double>(steps.size());
  const auto first = static_cast<size_t>(begin * count), last = static_cast<size_t>(std::ceil(end * count));
  double sum = 0.0, finite = 0.0;
  for (const TrainedStep& step : steps.subspan(first, last - first)) {
    if (!std::isfinite(step.loss)) continue;  // a skipped step
    sum += step.loss;
    finite += 1.0;
  }
  return sum / finite;
}

// To the last one with half of the greatest learning rate. A rate that goes down to 0 makes any loss flat.
Steps at_high_rate(const TrainingRecord& run) {
  const double most =
      run.steps.empty() ? 0.0 : std::ranges::max(run.steps, {}, &TrainedStep::learning_rate).learning_rate;
  const auto last = std::find_if(run.steps.rbegin(), run.steps.rend(),
                                 [&](const TrainedStep& step) { return step.learning_rate >= 0.5 * most; });
  return Steps(run.steps).first(static_cast<size_t>(run.steps.rend() - last));
}

}  // namespace

double late_learning(const TrainingRecord& run) {
  const Steps steps = at_high_rate(run);
  if (steps.size() < kFewestSteps) return kUnknown;
  const double end = mean_loss(steps, 0.9, 1.0), learnt = steps.front().loss - end;
  // The centres of the two tenths are a quarter of the steps apart.
  return learnt > 0.0 ? (mean_loss(steps, 0.65, 0.75) - end) / learnt : kUnknown;
}

double late_growth(const TrainingRecord& baseline, const TrainingRecord& candidate) {
  if (std::min(baseline.steps.size(), candidate.steps.size()) < kFewestSteps) return kUnknown;
  const double before = mean_loss(candidate.steps, 0.5, 0.75) - mean_loss(baseline.steps, 0.5, 0.75);
  const double growth = mean_loss(candidate.steps, 0.75, 1.0) - mean_loss(baseline.steps, 0.75, 1.0) - before;
  return std::isfinite(growth) ? growth : kUnknown;
}

std::string too_short(std::span<const TrainingRecord> baseline, std::span<const TrainingRecord> candidate,
                      double margin, double level) {
  std::vector<double> learnings, differences, growths;
  bool is_same = true;  // to the bit, so far; nothing shows that a longer run would differ
  for (size_t pair = 0; pair < baseline.size(); ++pair) {
    if (!baseline[pair].succeeded() || !candidate[pair].succeeded()) continue;
    learnings.push_back(late_learning(baseline[pair]));
    differences.push_back(candidate[pair].final_loss() - baseline[pair].final_loss());
    growths.push_back(late_growth(baseline[pair], candidate[pair]));
    is_same = is_same && std::ranges::equal(baseline[pair].steps, candidate[pair].steps, {}, &TrainedStep::loss,
                                            &TrainedStep::loss);
  }
  if (is_same) return "";
  const double learning = mean_difference(learnings, level).mean;
  if (std::isnan(learning)) return "too few steps to tell: give more steps";
  if (learning > kMostLateLearning) {
    return fmt::format(
        "too few steps to tell: {:.0f} % of what the baseline learnt came in the last quarter of its steps at half the "
        "peak learning rate or more; give more steps",
        100.0 * learning);
  }
  const MeanDifference growth = mean_difference(growths, level);
  const double of_twice_the_length = mean_difference(differences, level).mean + 4.0 * growth.mean;  // 4 more quarters
  if (growth.interval && growth.interval->low > 0.0 && of_twice_the_length > margin) {
    return fmt::format(
        "too few steps to tell: the difference grows by {:.2g} nats a quarter of the run; give more steps",
        growth.mean);
  }
  return "";
}

}  // namespace mantissa
