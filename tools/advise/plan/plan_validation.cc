#include "tools/advise/plan/plan_validation.h"

#include <algorithm>
#include <cmath>

#include "core/base/log.h"

namespace mantissa {
namespace {

Config short_run(Config config, int64_t steps) {
  config.train.steps = std::min(config.train.steps, steps);
  config.train.stop_at_step = 0;
  ScheduleOptions& schedule = config.optimizer.schedule;
  schedule.total_steps = config.train.steps;
  schedule.warmup_steps = std::min(schedule.warmup_steps, config.train.steps / 2);
  schedule.decay_steps = std::min(schedule.decay_steps, config.train.steps - schedule.warmup_steps);
  return config;
}

double deviation(const std::vector<double>& values) {
  const std::vector<double> zeros(values.size(), 0.0);
  return paired_difference(zeros, values, 0.95).stddev;
}

// A reference and the pairs with it.
struct Pairs {
  ReferenceResult result;
  std::vector<double> plan_losses{}, losses{}, log_times{};
  std::optional<SequentialComparison> comparison{};
  bool failed = false;

  bool is_decided() const { return failed || (comparison && comparison->verdict()); }

  void add(const TrainingRecord& plan, const TrainingRecord& reference, const ValidationOptions& options) {
    if (failed || !reference.succeeded()) {
      failed = true;
      return;
    }
    log_times.push_back(std::log(plan.median_step_seconds() / reference.median_step_seconds()));
    if (is_decided()) return;
    plan_losses.push_back(plan.final_loss());
    losses.push_back(reference.final_loss());
    if (comparison) return comparison->add(losses.back(), plan_losses.back());
    if (static_cast<int64_t>(losses.size()) < kFirstLook) return;
    result.margin = options.margin.value_or(deviation(losses));
    comparison.emplace(SequentialOptions{
        .margin = result.margin, .level = options.level, .first_look = kFirstLook, .max_pairs = options.most_seeds});
    for (size_t i = 0; i < losses.size() && !comparison->verdict(); ++i) comparison->add(losses[i], plan_losses[i]);
  }

  ReferenceResult finish(const ValidationOptions& options) {
    if (!losses.empty()) result.loss = paired_difference(losses, plan_losses, options.level);
    if (comparison && comparison->verdict() && !failed) {
      result.loss_verdict = *comparison->verdict();
      result.loss = comparison->difference();
    }
    if (!log_times.empty()) {
      result.log_time = mean_difference(log_times, options.level);
      const auto verdict = judge(result.log_time->interval, options.time_margin, MorePairs::kNone);
      result.time_verdict = verdict.value_or(ComparisonVerdict::kInconclusive);
    }
    return result;
  }
};

}  // namespace

PlanValidation validate_plan(const Config& plan, const std::vector<NamedConfig>& references,
                             const ValidationOptions& options, Communicator& communicator) {
  PlanValidation validation{.options = options};
  std::vector<Pairs> pairs;
  for (const NamedConfig& reference : references) pairs.push_back({.result = {.name = reference.name}});
  const size_t runs = references.size() + 1;
  const auto is_decided = [](const Pairs& one) { return one.is_decided(); };
  while (validation.seeds < options.most_seeds && !std::all_of(pairs.begin(), pairs.end(), is_decided)) {
    const uint64_t seed = plan.train.seed + static_cast<uint64_t>(validation.seeds);
    std::vector<TrainingRecord> records(runs);  // the plan's is the first
    for (size_t turn = 0; turn < runs; ++turn) {
      const size_t which = (static_cast<size_t>(validation.seeds) + turn) % runs;
      const Config& config = which == 0 ? plan : references[which - 1].config;
      records[which] = run_training(with_seed(short_run(config, options.steps), seed), communicator);
    }
    ++validation.seeds;
    if (!records[0].succeeded()) {
      validation.failure = records[0].failure;
      break;
    }
    for (size_t i = 0; i < pairs.size(); ++i) pairs[i].add(records[0], records[i + 1], options);
    log_info("plan: seed {}: final loss {:.4f} nats, {:.2f} ms a step", seed, records[0].final_loss(),
             1e3 * records[0].median_step_seconds());
  }
  for (Pairs& one : pairs) {
    validation.against.push_back(one.finish(options));
    if (!validation.failure.empty()) validation.against.back().loss_verdict = ComparisonVerdict::kWorse;
  }
  return validation;
}

}  // namespace mantissa
