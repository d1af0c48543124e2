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
#include "core/base/error.h"
#include "tools/config/config.h"
#include "tools/config/precision_phases.h"
#include "tools/lab/experiment/step_walk.h"
#include "tools/train/checkpoint.h"
#include "tools/train/run_profile.h"
#include "tools/train/trainer.h"

namespace mantissa {
namespace {

constexpr size_t kWarmUpSteps = 2;

bool rolls_back(const Config& config) { return adapts(config) && config.precision_adaptive.options.rollback; }

// A folder for the checkpoints of a run, beside its run folder, where all nodes see it. Collective.
class KeptFolder {
 public:
  KeptFolder(const std::string& run_dir, Communicator& communicator) : leads_(communicator.rank() == 0) {
    static std::atomic<int> count = 0;
    path_ = fmt::format("{}.compared-{}-{}", run_dir, ::getpid(), count++);
    path_ = all_gather_text_lists(communicator, {path_})[0][0];
  }
  KeptFolder(const KeptFolder&) = delete;
  KeptFolder& operator=(const KeptFolder&) = delete;
  ~KeptFolder() {
    std::error_code ignored;  // nothing may have been saved
    if (leads_) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const bool leads_;
};

// The settings of a training that writes nothing, but to `kept` for a rollback to return to.
Config in_memory(Config config, const KeptFolder* kept) {
  if (kept != nullptr) config.train.run_dir = kept->path();
  config.checkpoint.keep_last = 1;
  config.probe.enabled &= adapts(config) && config.precision_adaptive.options.underflow_share > 0.0;
  config.profile = false;
  config.train.sample_tokens = 0;
  if (config.train.eval_interval == 0 && config.data.has_validation())
    config.train.eval_interval = config.train.last_step();
  return config;
}

// The memory table on a CPU, since the process has trained other things before.
size_t peak_memory(const Session& session) {
  const Backend& backend = *session.runtime.backend;
  const size_t table = measure_memory_table(session).total();
  if (backend.device().kind == Device::Kind::kCpu) return table;
  return std::max(table, backend.memory_use().peak_bytes);
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
    record_.steps.push_back({.loss = step.loss,
                             .grad_norm = step.grad_norm,
                             .scale = step.scale,
                             .result = step.applied           ? StepResult::kApplied
                                       : is_fault(step.event) ? StepResult::kFault
                                                              : StepResult::kOverflow,
                             .seconds = step.seconds,
                             .learning_rate = step.learning_rate});
    if (progress_ != nullptr) progress_->advance();
  }
  void after_validation(Trainer& trainer, double loss) override {
    record_.validation.push_back({trainer.session().next_step, loss});
  }
  void before_leave(Trainer& trainer) override {
    Session& session = trainer.session();
    record_.memory = measure_memory_table(session);
    record_.peak_memory_bytes = std::max(record_.peak_memory_bytes, peak_memory(session));
    const double sent =
        trainer.is_leader()
            ? walk_calls(session.config, session.ranks(), session.runtime.backend->fp8_gemm_support()).sent()
            : 0.0;
    record_.sent_bytes = all_gather_records(session.communicator, sent)[0];
  }

 private:
  TrainingRecord& record_;
  ProgressBar* const progress_;
};

class Run {
 public:
  Run(const Config& config, Communicator& communicator, ProgressBar* progress)
      : kept_(rolls_back(config) ? std::make_unique<KeptFolder>(config.train.run_dir, communicator) : nullptr),
        config_(in_memory(config, kept_.get())),
        communicator_(communicator),
        progress_(progress),
        last_(config_.train.last_step()) {
    record_.tokens_per_step = config.train.global_batch * config.model.context;
  }

  TrainingRecord run() {
    try {
      train_run(config_, std::nullopt, {.begin = [this](auto&&... arguments) { begin(arguments...); }}, communicator_);
      judge();
    } catch (const ConfigError&) {
      throw;
    } catch (const FaultError& error) {
      record_.failure = error.what();
    } catch (const Error& error) {
      // It does not fit into device memory. Other ranks may have had enough, and wait for this one.
      if (communicator_.size() > 1 || error.code() != ExitCode::kMemory) throw;
      record_.failure = error.what();
    }
    agree();  // from now on nobody reads a checkpoint
    return std::move(record_);
  }

 private:
  void begin(Session& session, RunState&, const Start& start, TrainObservers& observers) {
    if (start.rollback) {  // these steps are trained again
      record_.steps.resize(static_cast<size_t>(session.next_step));
      std::erase_if(record_.validation, [&](const ValidationLoss& one) { return one.step > session.next_step; });
    }
    if (kept_) observers.push_back(std::make_shared<Keeper>(session, config_));
    observers.push_back(std::make_shared<Recorder>(record_, progress_));
    if (config_.probe.enabled) {
      observers.push_back(std::make_shared<ProbeRecorder>(session.config, session.sharded, "", std::nullopt));
    }
  }

  // A training that reached its last step may still have failed.
  void judge() {
    if (std::ranges::count(record_.steps, StepResult::kApplied, &TrainedStep::result) == 0) {
      record_.failure = fmt::format("all of its {} steps were skipped", record_.steps.size());
    } else if (!std::isfinite(record_.final_loss())) {
      record_.failure = fmt::format("the {} loss is not finite after step {}",
                                    record_.validation.empty() ? "training" : "validation", last_);
    }
  }

  // Gathers the figures that each rank measures for itself.
  void agree() {
    std::vector<double> mine;
    for (const TrainedStep& step : record_.steps) mine.push_back(step.seconds);
    mine.push_back(static_cast<double>(record_.peak_memory_bytes));
    const std::vector<std::vector<double>> all = all_gather_arrays(communicator_, mine);
    const auto largest = [&](size_t index) {
      double most = 0.0;
      for (const std::vector<double>& of_rank : all) most = std::max(most, of_rank[index]);
      return most;
    };
    for (size_t step = 0; step < record_.steps.size(); ++step) record_.steps[step].seconds = largest(step);
    record_.peak_memory_bytes = static_cast<size_t>(largest(record_.steps.size()));
    record_.memory = all_gather_records(communicator_, record_.memory)[0];
  }

  const std::unique_ptr<const KeptFolder> kept_;
  const Config config_;
  Communicator& communicator_;
  ProgressBar* const progress_;
  const int64_t last_;
  TrainingRecord record_{};
};

}  // namespace

std::string_view name(StepResult result) {
  constexpr std::string_view kNames[] = {"applied", "overflow", "fault"};
  return kNames[static_cast<size_t>(result)];
}

double TrainingRecord::first_loss() const {
  if (!validation.empty() && validation.front().step == 0) return validation.front().loss;
  return steps.empty() ? std::numeric_limits<double>::quiet_NaN() : steps.front().loss;
}

double TrainingRecord::final_loss() const {
  if (!validation.empty()) return validation.back().loss;
  if (steps.empty()) return std::numeric_limits<double>::quiet_NaN();
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

void require_trainable(const Config& config, const Communicator& communicator) {
  validate_phases(config);
  validate_for_ranks(config, communicator.size());
  require_precision(config, choose_device(config.device, communicator.local_rank()));
  predict_memory_tables(config, communicator.size(), expected_path(config, communicator));
}

TrainingRecord run_training(const Config& config, Communicator& communicator, ProgressBar* progress) {
  require_trainable(config, communicator);
  return Run(config, communicator, progress).run();
}

}  // namespace mantissa
