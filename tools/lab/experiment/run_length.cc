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

// The mean of finite losses from the share `begin` of the steps to the share `end`.
double mean_loss(const TrainingRecord& run, double begin, double end) {
  const auto steps = static_cast<double>(run.steps.size());
  const auto first = static_cast<size_t>(begin * steps), last = static_cast<size_t>(std::ceil(end * steps));
  double sum = 0.0, count = 0.0;
  for (size_t step = first; step < last; ++step) {
    if (!std::isfinite(run.steps[step].loss)) continue;  // a skipped step
    sum += run.steps[step].loss;
    count += 1.0;
  }
  return sum / count;
}

}  // namespace

double late_learning(const TrainingRecord& run) {
  if (run.steps.size() < kFewestSteps) return kUnknown;
  const double end = mean_loss(run, 0.9, 1.0), learnt = run.steps.front().loss - end;
  // The centres of the two tenths are a quarter of the run apart.
  return learnt > 0.0 ? (mean_loss(run, 0.65, 0.75) - end) / learnt : kUnknown;
}

double late_growth(const TrainingRecord& baseline, const TrainingRecord& candidate) {
  if (std::min(baseline.steps.size(), candidate.steps.size()) < kFewestSteps) return kUnknown;
  const double before = mean_loss(candidate, 0.5, 0.75) - mean_loss(baseline, 0.5, 0.75);
  const double growth = mean_loss(candidate, 0.75, 1.0) - mean_loss(baseline, 0.75, 1.0) - before;
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
  const std::string advice = "give more steps";
  if (!(learning <= kMostLateLearning)) {
    return std::isnan(learning)
               ? fmt::format("too few steps to tell: {}", advice)
               : fmt::format(
                     "too few steps to tell: {:.0f} % of what the baseline learnt came in the last quarter of "
                     "its steps; {}",
                     100.0 * learning, advice);
  }
  const MeanDifference growth = mean_difference(growths, level);
  const double of_twice_the_length = mean_difference(differences, level).mean + 4.0 * growth.mean;  // 4 more quarters
  if (growth.interval && growth.interval->low > 0.0 && of_twice_the_length > margin) {
    return fmt::format("too few steps to tell: the difference grows by {:.2g} nats a quarter of the run; {}",
                       growth.mean, advice);
  }
  return "";
}

}  // namespace mantissa
