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

SequentialOptions sequential(const ValidationOptions& options, double margin) {
  return {.margin = margin, .level = options.level, .first_look = kFirstLook, .max_pairs = options.most_seeds};
}

// A reference and the pairs with it.
class Pairs {
 public:
  Pairs(std::string name, const ValidationOptions& options)
      : options_(options), time_(sequential(options, options.time_margin)) {
    result_.name = std::move(name);
  }

  bool is_decided() const { return failed_ || (loss_ && loss_->verdict() && time_.verdict()); }

  void add(const TrainingRecord& plan, const TrainingRecord& reference) {
    failed_ = failed_ || !reference.succeeded();
    if (failed_) return;
    // As a loss: the smaller, the better.
    if (!time_.verdict()) time_.add(0.0, std::log(plan.median_step_seconds() / reference.median_step_seconds()));
    if (loss_ && loss_->verdict()) return;
    plan_losses_.push_back(plan.final_loss());
    losses_.push_back(reference.final_loss());
    if (loss_) return loss_->add(losses_.back(), plan_losses_.back());
    if (static_cast<int64_t>(losses_.size()) < kFirstLook) return;
    result_.margin = options_.margin.value_or(deviation(losses_));
    loss_.emplace(sequential(options_, result_.margin));
    for (size_t i = 0; i < losses_.size() && !loss_->verdict(); ++i) loss_->add(losses_[i], plan_losses_[i]);
  }

  // With a seed that the reference comes through, or fails with as well: then neither is known to be better.
  void plan_failed(const TrainingRecord& reference) {
    failed_ = true;
    if (reference.succeeded()) result_.loss_verdict = ComparisonVerdict::kWorse;
  }

  ReferenceResult finish() const {
    ReferenceResult result = result_;
    if (!losses_.empty())
      result.loss = loss_ ? loss_->difference() : paired_difference(losses_, plan_losses_, options_.level);
    if (time_.pairs() > 0) result.log_time = time_.difference();
    if (failed_) return result;
    if (loss_) result.loss_verdict = loss_->verdict().value_or(ComparisonVerdict::kInconclusive);
    result.time_verdict = time_.verdict().value_or(ComparisonVerdict::kInconclusive);
    return result;
  }

 private:
  ValidationOptions options_;
  ReferenceResult result_{};
  std::vector<double> plan_losses_, losses_;
  std::optional<SequentialComparison> loss_;
  SequentialComparison time_;
  bool failed_ = false;
};

}  // namespace

PlanValidation validate_plan(const Config& plan, const std::vector<NamedConfig>& references,
                             const ValidationOptions& options, Communicator& communicator) {
  PlanValidation validation{.options = options};
  std::vector<Pairs> pairs;
  for (const NamedConfig& reference : references) pairs.emplace_back(reference.name, options);
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
      for (size_t i = 0; i < pairs.size(); ++i) pairs[i].plan_failed(records[i + 1]);
      break;
    }
    for (size_t i = 0; i < pairs.size(); ++i) pairs[i].add(records[0], records[i + 1]);
    log_info("plan: seed {}: final loss {:.4f} nats, {:.2f} ms a step", seed, records[0].final_loss(),
             1e3 * records[0].median_step_seconds());
  }
  for (const Pairs& one : pairs) {
    validation.against.push_back(one.finish());
  }
  return validation;
}

}  // namespace mantissa
