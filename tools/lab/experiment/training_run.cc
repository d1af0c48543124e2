#include "tools/lab/experiment/training_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "comm/communicator.h"
#include "core/base/error.h"
#include "tools/config/precision_phases.h"
#include "tools/config/validation.h"
#include "tools/lab/advise/calls/step_walk.h"
#include "tools/train/evaluation.h"
#include "tools/train/quantiles.h"
#include "tools/train/state_handover.h"
#include "tools/train/train_step.h"
#include "tools/train/trainer.h"

namespace mantissa {
namespace {

constexpr size_t kWarmUpSteps = 2;

// Of a training that is looked at and leaves nothing behind.
Config in_memory(Config config) {
  config.probe.enabled = false;
  config.profile = false;
  config.train.sample_tokens = 0;
  const bool has_validation = !config.data.validation.empty() || config.data.validation_fraction > 0.0;
  if (config.train.eval_interval == 0 && has_validation) config.train.eval_interval = Trainer::last_step(config);
  return config;
}

// The host's allocator knows of the process, which has trained other things before.
size_t peak_memory(const Session& session) {
  const Backend& backend = *session.runtime.backend;
  const size_t table = measure_memory_table(session).total();
  if (backend.device().kind == Device::Kind::kCpu) return table;
  return std::max(table, backend.memory_use().peak_bytes);
}

// One phase after the other, as `mantissa train` has them.
class Run {
 public:
  Run(const Config& config, Communicator& communicator)
      : config_(in_memory(config)), communicator_(communicator), last_(Trainer::last_step(config_)) {
    record_.tokens_per_step = config.train.global_batch * config.model.context;
  }

  TrainingRecord run() {
    try {
      train_phases();
      if (!ended()) judge();
    } catch (const ConfigError&) {
      throw;
    } catch (const Error& error) {
      // What the device has no memory for. Of several ranks some may have had it, and wait for the others.
      if (communicator_.size() > 1 || error.code() != ExitCode::kConfig) throw;
      record_.failure = error.what();
    }
    agree();
    return std::move(record_);
  }

 private:
  bool ended() const { return !record_.failure.empty(); }

  void train_phases() {
    std::optional<HeldState> held;
    for (int phase = 0; phase < phase_count(config_) && phase_begin(config_, phase) < last_ && !ended(); ++phase) {
      const Config own = in_phase(config_, phase);
      Session session(own, communicator_);
      if (held) held->hand_over(session);
      train(session, std::min(phase_end(config_, phase), last_));
      record_.sent_bytes = walk_calls(own, communicator_.size(), session.runtime.backend->fp8_gemm_support()).sent();
      held.emplace(session);
    }
  }

  void train(Session& session, int64_t end) {
    TrainStep step(session);
    Evaluation evaluation(session);
    const auto evaluate = [&] {
      if (evaluation.enabled()) record_.validation.push_back({session.next_step, evaluation.run()});
    };
    if (session.next_step < end) step.calibrate();
    if (session.next_step == 0) evaluate();
    while (step.next_to_start() < end && !ended()) {
      take(step.run(), session);
      const int64_t started = step.next_to_start();
      if (ended() || started >= last_ || !evaluation.enabled() || started % config_.train.eval_interval != 0) continue;
      take(step.finish(), session);
      evaluate();
    }
    take(step.finish(), session);
    if (session.next_step >= last_ && !ended()) evaluate();
    record_.memory = measure_memory_table(session);
    record_.peak_memory_bytes = std::max(record_.peak_memory_bytes, peak_memory(session));
  }

  void take(const std::vector<StepReport>& reports, const Session& session) {
    for (const StepReport& report : reports) {
      record_.steps.push_back({.loss = report.loss,
                               .grad_norm = report.grad_norm,
                               .scale = report.scale,
                               .result = report.applied           ? StepResult::kApplied
                                         : is_fault(report.event) ? StepResult::kFault
                                                                  : StepResult::kOverflow,
                               .seconds = report.seconds});
      faults_in_a_row_ = is_fault(report.event) ? faults_in_a_row_ + 1 : 0;
      if (faults_in_a_row_ < config_.faults.max_consecutive || ended()) continue;
      record_.failure = fmt::format("stopped after {} faults in a row, the last in step {}: {}", faults_in_a_row_,
                                    report.step + 1, report.skip_reason(session.runtime.parameters));
    }
  }

  // Of a training that came to its last step.
  void judge() {
    const auto is_applied = [](const TrainedStep& step) { return step.result == StepResult::kApplied; };
    if (std::none_of(record_.steps.begin(), record_.steps.end(), is_applied)) {
      record_.failure = fmt::format("all of its {} steps were skipped", record_.steps.size());
    } else if (!std::isfinite(record_.final_loss())) {
      record_.failure = fmt::format("the {} loss is not finite after step {}",
                                    record_.validation.empty() ? "training" : "validation", last_);
    }
  }

  // What ranks measured for themselves.
  void agree() {
    std::vector<double> mine;
    for (const TrainedStep& step : record_.steps) mine.push_back(step.seconds);
    mine.push_back(static_cast<double>(record_.peak_memory_bytes));
    const auto bytes = communicator_.all_gather_bytes(std::as_bytes(std::span(mine)));
    std::vector<double> all(bytes.size() / sizeof(double));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    const auto largest = [&](size_t index) {
      double most = 0.0;
      for (size_t at = index; at < all.size(); at += mine.size()) most = std::max(most, all[at]);
      return most;
    };
    for (size_t step = 0; step < record_.steps.size(); ++step) record_.steps[step].seconds = largest(step);
    record_.peak_memory_bytes = static_cast<size_t>(largest(record_.steps.size()));
    record_.memory = all_gather_records(communicator_, record_.memory)[0];
  }

  const Config config_;
  Communicator& communicator_;
  const int64_t last_;
  TrainingRecord record_{};
  int faults_in_a_row_ = 0;
};

}  // namespace

std::string_view name(StepResult result) {
  switch (result) {
    case StepResult::kApplied:
      return "applied";
    case StepResult::kOverflow:
      return "overflow";
    case StepResult::kFault:
      break;
  }
  return "fault";
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
  const auto count = std::count_if(steps.begin(), steps.end(), [&](const auto& step) { return step.result == kind; });
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
  if (adapts(config)) {
    throw ConfigError(
        "precision.adaptive changes the precision as a run goes on, which only `mantissa train` does: give the "
        "precision "
        "of one of its levels");
  }
  const FloorPolicy floor = config.scaler.scaler.floor_policy;
  const bool lifts = floor == FloorPolicy::kLift || floor == FloorPolicy::kBf16;
  if (config.precision_fallback.overflows > 0 || (lifts && config.precision.uses_fp16())) {
    throw ConfigError(
        "precision.fallback.overflows and scaler.floor = lift or bf16 change the precision of layers as a run goes on, "
        "which only `mantissa train` does: give precision.fallback.overflows=0 and scaler.floor=fault or clamp");
  }
  predict_memory_tables(config, communicator.size(), expected_path(config, communicator));  // what the model refuses
}

TrainingRecord run_training(const Config& config, Communicator& communicator) {
  require_trainable(config, communicator);
  return Run(config, communicator).run();
}

}  // namespace mantissa
