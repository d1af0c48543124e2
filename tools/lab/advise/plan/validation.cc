#include "tools/lab/advise/plan/plan_advice.h"

#include <algorithm>
#include <cmath>

#include "core/base/log.h"
#include "tools/lab/experiment/training_run.h"

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

// The pairs of runs with one reference.
class Pairs {
 public:
  Pairs(std::string name, const ValidationOptions& options, uint64_t first_seed)
      : options_(options),
        first_seed_(first_seed),
        loss_({.level = options.level, .first_look = kFirstLook, .max_pairs = options.most_seeds}) {
    result_.name = std::move(name);
  }

  bool has_failed() const { return failed_; }
  bool is_decided() const { return failed_ || loss_.verdict(); }

  void add(const TrainingRecord& plan, const TrainingRecord& reference) {
    failed_ = failed_ || !reference.succeeded();
    if (failed_) return;
    const double log_time = std::log(plan.median_step_seconds() / reference.median_step_seconds());
    if (std::isfinite(log_time)) log_times_.push_back(log_time);  // a run may have applied no step but its first
    if (is_decided()) return;
    margins_.push_back(options_.margin.of(reference.first_loss(), reference.final_loss()));
    loss_.add(plan.final_loss() - reference.final_loss(), margins_.back());
    plans_.push_back(plan);
    references_.push_back(reference);
  }

  // The plan is worse unless the reference fails with the same seed; then neither is known to be better.
  void plan_failed(const TrainingRecord& reference) {
    failed_ = true;
    if (reference.succeeded()) result_.loss_verdict = ComparisonVerdict::kWorse;
  }

  // Times of the whole runs. Losses decide how many runs there are, so times have a single look.
  StepTimeDifference times() const {
    if (log_times_.empty()) return {};
    const std::vector<double> margins(log_times_.size(), std::log1p(options_.time_margin));
    return {mean_difference(log_times_, options_.level), *judge(log_times_, margins, options_.level, MorePairs::kNone)};
  }

  ReferenceResult finish() const {
    ReferenceResult result = result_;
    if (plans_.empty()) return result;
    result.margin = mean_margin(margins_);
    result.loss = loss_.difference();
    result.why = too_short(references_, plans_, result.margin, options_.level);
    if (failed_) return result;
    result.loss_verdict = unless_short(loss_.verdict().value_or(ComparisonVerdict::kInconclusive), result.why);
    if (auto outlier = loss_.stands_apart()) {
      outlier->without = unless_short(outlier->without, result.why);
      result.outlier = describe(*outlier, first_seed_ + outlier->pair);
    }
    return result;
  }

 private:
  const ValidationOptions options_;
  const uint64_t first_seed_;
  ReferenceResult result_{};
  SequentialComparison loss_;
  std::vector<TrainingRecord> plans_, references_;  // the pairs of loss_
  std::vector<double> margins_, log_times_;
  bool failed_ = false;
};

}  // namespace

std::vector<Candidate> references(const Config& config, DType low, const std::vector<PlannedPlace>& places) {
  const auto uniform = [](const Config& shared, DType dtype) {
    return chosen_candidates(shared, {std::string(name(dtype))}).front();
  };
  const Plan exact = uniform_plan(places, low, std::string(name(DType::kF32)));
  return {uniform(config, low), uniform(with_shared(config, places, exact), DType::kF32)};
}

PlanValidation validate_plan(const Config& plan, const std::vector<Candidate>& references,
                             const ValidationOptions& options, Communicator& communicator) {
  const Config short_plan = short_run(plan, options.steps);
  PlanValidation validation{.steps = short_plan.train.steps};
  std::vector<Pairs> pairs;
  std::vector<Config> others;
  for (const Candidate& reference : references) {
    pairs.emplace_back(reference.name, options, plan.train.seed);
    others.push_back(short_run(reference.config, options.steps));
  }
  const size_t runs = references.size() + 1;
  std::vector<double> low_losses;
  while (validation.seeds < options.most_seeds && !std::ranges::all_of(pairs, &Pairs::is_decided)) {
    const uint64_t seed = plan.train.seed + static_cast<uint64_t>(validation.seeds);
    std::vector<TrainingRecord> records(runs);  // the plan's is the first
    for (size_t turn = 0; turn < runs; ++turn) {
      const size_t which = (static_cast<size_t>(validation.seeds) + turn) % runs;
      records[which] = record_training(with_seed(which == 0 ? short_plan : others[which - 1], seed), communicator);
    }
    ++validation.seeds;
    validation.failure = records[0].failure;
    const TrainingRecord &low = records[1], &exact = records.back();
    if (low.succeeded() && exact.succeeded()) low_losses.push_back(low.final_loss() - exact.final_loss());
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (records[0].succeeded()) pairs[i].add(records[0], records[i + 1]);
      if (!records[0].succeeded()) pairs[i].plan_failed(records[i + 1]);
    }
    if (!records[0].succeeded()) break;
    log_info("plan: seed {}: final loss {:.4f} nats, {:.2f} ms a step", seed, records[0].final_loss(),
             1e3 * records[0].median_step_seconds());
  }
  for (const Pairs& one : pairs) validation.against.push_back(one.finish());
  if (std::ssize(low_losses) == validation.seeds) {
    const SequentialOptions looks{.level = options.level, .first_look = kFirstLook, .max_pairs = options.most_seeds};
    validation.low_loss = mean_difference(low_losses, looks.level_of_look());
  }
  if (options.time_pairs == 0 || !validation.failure.empty()) return validation;

  const auto by_turns = compare_step_times(
      short_plan, others, {.margin = options.time_margin, .level = options.level, .most_pairs = options.time_pairs},
      communicator);
  if (!by_turns) log_info("plan: {} models do not fit in memory at once: step times are those of whole runs", runs);
  validation.has_turns = by_turns.has_value();
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].has_failed()) continue;
    const StepTimeDifference times = by_turns ? (*by_turns)[i] : pairs[i].times();
    validation.against[i].log_time = times.log_ratio;
    validation.against[i].time_verdict = times.verdict;
  }
  return validation;
}

}  // namespace mantissa
