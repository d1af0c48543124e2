#include "tools/experiment/seed_margin.h"

#include <algorithm>
#include <vector>

#include "tools/experiment/paired_difference.h"
#include "tools/experiment/training_run.h"

namespace mantissa {

LossSpan loss_span(const TrainingRecord& record) {
  const bool is_validated = !record.validation.empty() && record.validation.front().step == 0;
  return {.first = is_validated ? record.validation.front().loss : record.steps.front().loss,
          .last = record.final_loss()};
}

double seed_margin(std::span<const LossSpan> seeds) {
  const bool all_learnt = std::all_of(seeds.begin(), seeds.end(), [](const LossSpan& one) { return one.has_learnt(); });
  if (seeds.size() < 2 || !all_learnt) return 0.0;
  std::vector<double> losses;
  for (const LossSpan& one : seeds) losses.push_back(one.last);
  return mean_difference(losses, 0.95).stddev;  // whatever the level
}

}  // namespace mantissa
