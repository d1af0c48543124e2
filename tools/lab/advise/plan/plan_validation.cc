#include "tools/lab/advise/plan/plan_validation.h"

#include <algorithm>
#include <cmath>

#include "core/base/log.h"
#include "tools/lab/experiment/paired_comparison.h"

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

SequentialOptions sequential(const ValidationOptions& options, double margin) {
  return {.margin = margin, .level = options.level, .first_look = kFirstLook, .max_pairs = options.most_seeds};
}

// A reference and the pairs with it.
class Pairs {
 public:
  Pairs(std::string name, const ValidationOptions& options) : options_(options) { result_.name = std::move(name); }

  bool has_failed() const { return failed_; }
  bool is_decided() const { return failed_ || (loss_ && loss_->verdict()); }

  void add(const TrainingRecord& plan, const TrainingRecord& reference) {
    failed_ = failed_ || !reference.succeeded();
    if (failed_) return;
    const double log_time = std::log(plan.median_step_seconds() / reference.median_step_seconds());
    if (std::isfinite(log_time)) log_times_.push_back(log_time);  // a run may have applied its first steps alone
    if (loss_ && loss_->verdict()) return;
    plan_losses_.push_back(plan.final_loss());
    losses_.push_back(reference.final_loss());
    first_losses_.push_back(reference.first_loss());
    if (loss_) return loss_->add(losses_.back(), plan_losses_.back());
    if (static_cast<int64_t>(losses_.size()) < kFirstLook) return;
    result_.margin = options_.margin.value_or(seed_margin(first_losses_, losses_));
    loss_.emplace(sequential(options_, result_.margin));
    for (size_t i = 0; i < losses_.size() && !loss_->verdict(); ++i) loss_->add(losses_[i], plan_losses_[i]);
  }

  // With a seed that the reference comes through, or fails with as well: then neither is known to be better.
  void plan_failed(const TrainingRecord& reference) {
    failed_ = true;
    if (reference.succeeded()) result_.loss_verdict = ComparisonVerdict::kWorse;
  }

  // Of the whole runs, where there is no time by turns. How many there are is decided by losses, and so a single look.
  StepTimeDifference times() const {
    StepTimeDifference times;
    if (log_times_.empty()) return times;
    times.log_ratio = mean_difference(log_times_, options_.level);
    times.verdict = *judge(times.log_ratio->interval, std::log1p(options_.time_margin), MorePairs::kNone);
    return times;
  }

  ReferenceResult finish() const {
    ReferenceResult result = result_;
    if (!losses_.empty())
      result.loss = loss_ ? loss_->difference() : paired_difference(losses_, plan_losses_, options_.level);
    if (!failed_ && loss_) result.loss_verdict = loss_->verdict().value_or(ComparisonVerdict::kInconclusive);
    return result;
  }

 private:
  ValidationOptions options_;
  ReferenceResult result_{};
  std::vector<double> plan_losses_, losses_, first_losses_, log_times_;
  std::optional<SequentialComparison> loss_;
  bool failed_ = false;
};

void add_times(const Config& plan, const std::vector<NamedConfig>& references, const ValidationOptions& options,
               const std::vector<Pairs>& pairs, Communicator& communicator, PlanValidation& validation) {
  std::vector<Config> others;
  for (const NamedConfig& reference : references) others.push_back(short_run(reference.config, options.steps));
  const auto by_turns = compare_step_times(
      short_run(plan, options.steps), others,
      {.margin = options.time_margin, .level = options.level, .most_pairs = options.time_pairs}, communicator);
  if (!by_turns) {
    log_info("plan: no room for {} models at once: step times are those of whole runs, one after the other",
             others.size() + 1);
  }
  validation.times = by_turns ? TimesOf::kTurns : TimesOf::kRuns;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].has_failed()) continue;
    const StepTimeDifference times = by_turns ? (*by_turns)[i] : pairs[i].times();
    validation.against[i].log_time = times.log_ratio;
    validation.against[i].time_verdict = times.verdict;
  }
}

}  // namespace

PlanValidation validate_plan(const Config& plan, const std::vector<NamedConfig>& references,
                             const ValidationOptions& options, Communicator& communicator) {
  PlanValidation validation{.options = options, .steps = short_run(plan, options.steps).train.steps};
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
  for (const Pairs& one : pairs) validation.against.push_back(one.finish());
  if (options.time_pairs > 0 && validation.failure.empty())
    add_times(plan, references, options, pairs, communicator, validation);
  return validation;
}

}  // namespace mantissa
