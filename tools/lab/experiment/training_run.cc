#include "tools/lab/experiment/training_run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "core/backend/decorators.h"
#include "core/base/error.h"
#include "tools/config/config.h"
#include "tools/config/precision_phases.h"
#include "tools/lab/experiment/paired_comparison.h"
#include "tools/train/checkpoint.h"
#include "tools/train/run_profile.h"
#include "tools/train/step/train_step.h"
#include "tools/train/training.h"

namespace mantissa {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kWarmUpSteps = 2;

// A folder for the checkpoints of a run, beside its run folder, where all nodes see it. Its constructor is collective.
struct KeptFolder {
  KeptFolder(const std::string& run_dir, Communicator& communicator) : leads(communicator.rank() == 0) {
    static std::atomic<int> count = 0;
    path = fmt::format("{}.compared-{}-{}", run_dir, ::getpid(), count++);
    path = all_gather_text_lists(communicator, {path})[0][0];
  }
  KeptFolder(const KeptFolder&) = delete;
  KeptFolder& operator=(const KeptFolder&) = delete;
  ~KeptFolder() {
    std::error_code ignored;  // nothing may have been saved
    if (leads) std::filesystem::remove_all(path, ignored);
  }

  std::string path;
  const bool leads;
};

// The settings of a training that writes nothing, but to `kept` for a rollback to return to.
Config in_memory(Config config, const KeptFolder* kept) {
  if (kept != nullptr) config.train.run_dir = kept->path;
  config.checkpoint.keep_last = 1;
  config.probe.enabled &= adapts(config) && config.precision_adaptive.options.underflow_share > 0.0;
  config.profile = false;
  config.train.sample_tokens = 0;
  if (config.train.eval_interval == 0 && config.data.has_validation())
    config.train.eval_interval = config.train.last_step();
  return config;
}

// Keeps checkpoints for precision.adaptive.rollback.
class Keeper final : public TrainObserver {
 public:
  Keeper(Session& session, const Config& config)
      : checkpoints_(session, config, nullptr), interval_(config.checkpoint.interval) {}

  bool pauses_after(int64_t steps) const override { return is_due(interval_, steps); }
  void at_pause(Trainer& trainer) override { checkpoints_.save(trainer.state()); }

 private:
  TrainingCheckpoints checkpoints_;
  const int64_t interval_;
};

// Records a training.
class Recorder final : public TrainObserver {
 public:
  Recorder(TrainingRecord& record, ProgressBar* progress) : record_(record), progress_(progress) {}

  void after_step(Trainer&, const StepReport& step) override {
    using enum StepResult;
    const StepResult result = step.applied ? kApplied : is_fault(step.event) ? kFault : kOverflow;
    record_.steps.push_back({step.loss, step.grad_norm, step.scale, result, step.seconds, step.learning_rate});
    if (progress_ != nullptr) progress_->advance();
  }
  void after_validation(Trainer& trainer, double loss) override {
    record_.validation.push_back({trainer.session().next_step, loss});
  }
  void before_leave(Trainer& trainer) override {
    Session& session = trainer.session();
    const Backend& backend = *session.runtime.backend;
    record_.memory = measure_memory_table(session);
    size_t peak = record_.memory.total();  // on a CPU, since the process has trained other things before
    if (backend.device().kind != Device::Kind::kCpu) peak = std::max(peak, backend.memory_use().peak_bytes);
    record_.peak_memory_bytes = std::max(record_.peak_memory_bytes, peak);
    const double sent =
        trainer.is_leader() ? walk_calls(session.config, session.ranks(), backend.fp8_gemm_support()).sent() : 0.0;
    record_.sent_bytes = all_gather_records(session.communicator, sent)[0];
  }

 private:
  TrainingRecord& record_;
  ProgressBar* const progress_;
};

// A training that reached its last step may still have failed.
std::string failure_of(const TrainingRecord& record, int64_t last_step) {
  if (std::ranges::count(record.steps, StepResult::kApplied, &TrainedStep::result) == 0) {
    return fmt::format("all of its {} steps were skipped", record.steps.size());
  }
  const char* const kind = record.validation.empty() ? "training" : "validation";
  return std::isfinite(record.final_loss()) ? ""
                                            : fmt::format("the {} loss is not finite after step {}", kind, last_step);
}

// Gathers the figures that each rank measures for itself.
void agree(TrainingRecord& record, Communicator& communicator) {
  std::vector<double> mine;
  for (const TrainedStep& step : record.steps) mine.push_back(step.seconds);
  mine.push_back(static_cast<double>(record.peak_memory_bytes));
  std::vector<double> most(mine.size());
  for (const std::vector<double>& of_rank : all_gather_arrays(communicator, mine)) {
    for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], of_rank[i]);
  }
  for (size_t step = 0; step < record.steps.size(); ++step) record.steps[step].seconds = most[step];
  record.peak_memory_bytes = static_cast<size_t>(most.back());
  record.memory = all_gather_records(communicator, record.memory)[0];
}

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

// To the last with half of the greatest learning rate.
Steps at_high_rate(const TrainingRecord& run) {
  const double most =
      run.steps.empty() ? 0.0 : std::ranges::max(run.steps, {}, &TrainedStep::learning_rate).learning_rate;
  const auto last = std::find_if(run.steps.rbegin(), run.steps.rend(),
                                 [&](const TrainedStep& step) { return step.learning_rate >= 0.5 * most; });
  return Steps(run.steps).first(static_cast<size_t>(run.steps.rend() - last));
}

}  // namespace

std::string_view name(StepResult result) {
  constexpr std::string_view kNames[] = {"applied", "overflow", "fault"};
  return kNames[static_cast<size_t>(result)];
}

double TrainingRecord::first_loss() const {
  if (!validation.empty() && validation.front().step == 0) return validation.front().loss;
  return steps.empty() ? kUnknown : steps.front().loss;
}

double TrainingRecord::final_loss() const {
  if (!validation.empty()) return validation.back().loss;
  if (steps.empty()) return kUnknown;
  const size_t count = (steps.size() + 9) / 10;
  double sum = 0.0;
  for (size_t step = steps.size() - count; step < steps.size(); ++step) sum += steps[step].loss;
  return sum / static_cast<double>(count);
}

double TrainingRecord::median_step_seconds() const {
  std::vector<double> seconds;
  for (size_t step = steps.size() > kWarmUpSteps ? kWarmUpSteps : 0; step < steps.size(); ++step) {
    if (steps[step].result == StepResult::kApplied) seconds.push_back(steps[step].seconds);
  }
  return quantile(std::move(seconds), 0.5);
}

double TrainingRecord::undone_share() const {
  return steps.empty() ? 0.0 : static_cast<double>(undone) / static_cast<double>(steps.size());
}

double TrainingRecord::skipped_share(StepResult kind) const {
  const auto count = std::ranges::count(steps, kind, &TrainedStep::result);
  return steps.empty() ? 0.0 : static_cast<double>(count) / static_cast<double>(steps.size());
}

int64_t TrainingRecord::scale_changes() const {
  int64_t changes = 0;
  for (size_t step = 1; step < steps.size(); ++step) changes += steps[step].scale != steps[step - 1].scale;
  return changes;
}

float TrainingRecord::smallest_scale() const {
  float smallest = std::numeric_limits<float>::infinity();
  for (const TrainedStep& step : steps) smallest = std::min(smallest, step.scale);
  return smallest;
}

Config with_seed(Config config, uint64_t seed) {
  config.train.seed = seed;
  config.optimizer.adamw.seed = seed;
  return config;
}

void require_trainable(const Config& config, Communicator& communicator) {
  validate_phases(config);
  validate_for_ranks(config, communicator.size());
  require_precision(config, choose_device(config.device, communicator.local_rank()));
  predict_memory_tables(config, {.ranks = communicator.size(), .path = expected_path(config, communicator)});
}

TrainingRecord record_training(const Config& given, Communicator& communicator, ProgressBar* progress) {
  require_trainable(given, communicator);
  const bool rolls_back = adapts(given) && given.precision_adaptive.options.rollback;
  const auto kept = rolls_back ? std::make_unique<KeptFolder>(given.train.run_dir, communicator) : nullptr;
  const Config config = in_memory(given, kept.get());
  TrainingRecord record;
  record.tokens_per_step = given.train.global_batch * given.model.context;
  const auto begin = [&](Session& session, RunState&, const Start& start, TrainObservers& observers) {
    if (start.rollback) {  // these steps are trained again
      record.undone += std::ssize(record.steps) - session.next_step;
      record.steps.resize(static_cast<size_t>(session.next_step));
      std::erase_if(record.validation, [&](const ValidationLoss& one) { return one.step > session.next_step; });
    }
    if (kept) observers.push_back(std::make_shared<Keeper>(session, config));
    observers.push_back(std::make_shared<Recorder>(record, progress));
    if (config.probe.enabled) {
      observers.push_back(std::make_shared<ProbeRecorder>(session.config, session.sharded, "", std::nullopt));
    }
  };
  try {
    train_run(config, std::nullopt, {.begin = begin}, communicator);
    record.failure = failure_of(record, config.train.last_step());
  } catch (const ConfigError&) {
    throw;
  } catch (const FaultError& error) {
    record.failure = error.what();
  } catch (const Error& error) {
    // It does not fit into device memory. Other ranks may have had enough, and wait for this one.
    if (communicator.size() > 1 || error.code() != ExitCode::kMemory) throw;
    record.failure = error.what();
  }
  agree(record, communicator);  // from now on nobody reads a checkpoint
  return record;
}

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
  const MeanDifference learning = mean_difference(learnings, level);
  if (std::isnan(learning.mean)) return "too few steps to tell: give more steps";
  const Interval known = learning.interval.value_or(Interval{.low = learning.mean, .high = learning.mean});
  if (known.high > kMostLateLearning) {
    return fmt::format(
        "too few steps to tell: {:.0f} % of what the baseline learnt came in the last quarter of its steps at half the "
        "peak learning rate or more; {:.0f} to {:.0f} %, where at most {:.0f} % must be certain: give more steps{}",
        100.0 * learning.mean, 100.0 * known.low, 100.0 * known.high, 100.0 * kMostLateLearning,
        learning.mean <= kMostLateLearning ? ", or more seeds to know it better" : "");
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

double StepCalls::sent() const {
  double sum = 0.0;
  for (const auto& [phase, bytes] : sent_bytes) sum += bytes;
  return sum;
}

StepCalls walk_calls(const Config& config, int ranks, Fp8GemmSupport support, Backend* packing) {
  StepCalls found;
  auto owned = std::make_unique<StepProfiler>(ProfilerOptions{.warm_up_steps = 1, .traced_steps = 0});
  StepProfiler& profiler = *owned;
  auto backend = create_recording_backend(
      [&](KernelCall call) { found.calls.push_back(std::move(call)); },
      [&]() -> std::string_view { return profiler.recording() ? profiler.phase() : ""; }, packing, support);
  DryRun dry(config, ranks, std::move(backend), std::move(owned));
  TrainStep step(dry.session());
  step.calibrate();
  step.run();  // creates what later steps reuse: copies of weights, packed operands
  step.run();
  for (const OpTime& row : profiler.finish().rows()) {
    const bool sends = row.work.bytes > 0.0 && (row.op == "all_to_all" || row.op == "all_gather");
    if (sends) found.sent_bytes[row.phase] += row.work.bytes;
  }
  return found;
}

}  // namespace mantissa
