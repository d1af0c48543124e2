#include "tools/lab/compare/precision_summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/lab/experiment/seed_margin.h"
#include "tools/train/statistics.h"

namespace mantissa {
namespace {

std::optional<Spread> spread_of(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return Spread{.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
                .low = *low,
                .high = *high};
}

std::vector<double> losses_of(const std::vector<TrainingRecord>& runs, double (TrainingRecord::*loss)() const) {
  std::vector<double> losses;
  for (const TrainingRecord& run : runs) {
    if (run.succeeded()) losses.push_back((run.*loss)());
  }
  return losses;
}

std::optional<double> peak_of(const std::vector<TrainingRecord>& runs) {
  size_t peak = 0;
  for (const TrainingRecord& run : runs) peak = std::max(peak, run.peak_memory_bytes);
  return peak > 0 ? std::optional(static_cast<double>(peak)) : std::nullopt;
}

void add_times(const std::vector<TrainingRecord>& runs, const std::vector<TrainingRecord>& baseline,
               PrecisionSummary& found) {
  std::vector<double> seconds, ratios;
  for (size_t seed = 0; seed < runs.size(); ++seed) {
    const double ours = runs[seed].median_step_seconds(), theirs = baseline[seed].median_step_seconds();
    if (std::isnan(ours)) continue;
    seconds.push_back(ours);
    if (!std::isnan(theirs)) ratios.push_back(ours / theirs);
  }
  found.step_seconds = spread_of(seconds);
  found.time_ratio = spread_of(ratios);
  if (found.step_seconds) {
    found.tokens_per_second = static_cast<double>(runs.front().tokens_per_step) / found.step_seconds->mean;
  }
}

void add_steps(const std::vector<TrainingRecord>& runs, PrecisionSummary& found) {
  std::vector<double> norms;
  double steps = 0.0, overflows = 0.0, faults = 0.0, changes = 0.0;
  for (const TrainingRecord& run : runs) {
    const auto count = static_cast<double>(run.steps.size());
    steps += count;
    overflows += count * run.skipped_share(StepResult::kOverflow);
    faults += count * run.skipped_share(StepResult::kFault);
    changes += static_cast<double>(run.scale_changes());
    if (count > 0) found.smallest_scale = std::min(found.smallest_scale.value_or(HUGE_VALF), run.smallest_scale());
    for (const TrainedStep& step : run.steps) {
      if (step.result == StepResult::kApplied) norms.push_back(step.grad_norm);
    }
  }
  if (steps > 0.0) found.overflow_share = overflows / steps, found.fault_share = faults / steps;
  found.scale_changes = changes / static_cast<double>(runs.size());
  if (!runs.front().steps.empty()) found.last_scale = runs.front().steps.back().scale;
  if (!norms.empty()) found.grad_norm = quantile(std::move(norms), 0.5);
}

void add_losses(const PrecisionComparison& comparison, const std::vector<TrainingRecord>& runs,
                const std::vector<TrainingRecord>& baseline, PrecisionSummary& found) {
  const double level = comparison.options.level;
  if (const auto losses = losses_of(runs, &TrainingRecord::final_loss); !losses.empty())
    found.loss = mean_difference(losses, level);
  std::vector<double> ours, theirs;
  bool only_ours_failed = false, only_theirs_failed = false;
  for (size_t seed = 0; seed < runs.size(); ++seed) {
    const bool is_ours = runs[seed].succeeded(), is_theirs = baseline[seed].succeeded();
    only_ours_failed |= !is_ours && is_theirs;
    only_theirs_failed |= is_ours && !is_theirs;
    if (!is_ours || !is_theirs) continue;
    ours.push_back(runs[seed].final_loss());
    theirs.push_back(baseline[seed].final_loss());
  }
  if (!ours.empty()) found.loss_difference = paired_difference(theirs, ours, level);
  if (only_ours_failed != only_theirs_failed) {
    found.verdict = only_ours_failed ? ComparisonVerdict::kWorse : ComparisonVerdict::kBetter;
  } else if (!only_ours_failed) {
    const auto interval = found.loss_difference ? found.loss_difference->interval : std::nullopt;
    found.verdict = *judge(interval, margin_of(comparison), MorePairs::kNone);
  }
}

}  // namespace

double margin_of(const PrecisionComparison& comparison) {
  if (comparison.options.margin) return *comparison.options.margin;
  const std::vector<TrainingRecord>& runs = comparison.precisions[comparison.baseline].runs;
  return seed_margin(losses_of(runs, &TrainingRecord::first_loss), losses_of(runs, &TrainingRecord::final_loss));
}

PrecisionSummary summary_of(const PrecisionComparison& comparison, size_t precision) {
  const std::vector<TrainingRecord>& runs = comparison.precisions[precision].runs;
  const std::vector<TrainingRecord>& baseline = comparison.precisions[comparison.baseline].runs;
  PrecisionSummary found{.runs = static_cast<int64_t>(runs.size())};
  for (const TrainingRecord& run : runs) {
    if (run.succeeded()) {
      ++found.succeeded;
    } else if (found.failure.empty()) {
      found.failure = run.failure;
    }
  }
  add_times(runs, baseline, found);
  add_steps(runs, found);
  add_losses(comparison, runs, baseline, found);
  found.peak_memory_bytes = peak_of(runs);
  const std::optional<double> theirs = peak_of(baseline);
  if (found.peak_memory_bytes && theirs) found.memory_ratio = *found.peak_memory_bytes / *theirs;
  found.sent_bytes = runs.front().sent_bytes;
  return found;
}

}  // namespace mantissa
