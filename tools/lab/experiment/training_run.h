// TrainingRecord: a training from its first step to its last in this process, as a result to be compared with others.
// Nothing is written; with precision.adaptive.rollback there are checkpoints beside the run folder until it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/progress_bar.h"
#include "tools/config/config.h"
#include "tools/train/step/dry_run.h"

namespace mantissa {

class Communicator;

enum class StepResult : uint8_t {
  kApplied,
  kOverflow,  // skipped: gradients that were not finite, as a loss scale too large makes them
  kFault,     // skipped: a non-finite loss, or overflow that no lower loss scale can cure
};

std::string_view name(StepResult result);  // "applied", "overflow", "fault"

struct TrainedStep {
  double loss = 0.0;       // nats per token; not finite after a fault
  double grad_norm = 0.0;  // unscaled, before clipping; not finite where the step was skipped
  float scale = 1.0f;      // of the loss
  StepResult result = StepResult::kApplied;
  double seconds = 0.0;  // of the slowest rank
  double learning_rate = 0.0;
};

struct ValidationLoss {
  int64_t step = 0;   // steps done
  double loss = 0.0;  // nats per token
};

// The same on all ranks.
struct TrainingRecord {
  std::vector<TrainedStep> steps;          // from the first on
  std::vector<ValidationLoss> validation;  // before the first step, at train.eval_interval, and after the last step
  std::string failure{};                   // why the training did not succeed; empty if it did
  int64_t tokens_per_step = 0;             // positions of the global batch
  MemoryTable memory{};                    // of rank 0, as measured, in the last phase of the precision
  // The most on any rank and in any phase: the total of the table; on a GPU all memory taken from it. 0 if nothing was
  // trained.
  size_t peak_memory_bytes = 0;
  double sent_bytes = 0.0;  // in a step, by a rank to others, where no two share memory

  // It came to its last step, with a finite loss and not without an update.
  bool succeeded() const { return failure.empty(); }
  // The loss of the first weights: the validation loss before the first step, or without validation text the first
  // step's. NaN if nothing was trained.
  double first_loss() const;
  // The last validation loss, or without validation text the mean of the last tenth of the steps' losses. NaN if
  // nothing was trained.
  double final_loss() const;
  // Over the applied steps after the first two, if there are more: those also allocate memory and create kernels.
  // Skipped steps may be run again to find the reason. NaN if none was applied.
  double median_step_seconds() const;
  double tokens_per_second() const { return static_cast<double>(tokens_per_step) / median_step_seconds(); }
  double skipped_share(StepResult kind) const;  // of all steps
  int64_t scale_changes() const;
  float smallest_scale() const;
};

// The configuration with other random numbers, first weights and order of the data.
Config with_seed(Config config, uint64_t seed);

// ConfigError before anything is trained: for settings that are impossible, or rejected by the model or these ranks.
void require_trainable(const Config& config, const Communicator& communicator);

// Trains as `mantissa train` does, from the first weights to TrainConfig::last_step(), but writes nothing: no
// checkpoints, samples, probe files or profiles. If train.eval_interval is 0 and there is validation text (or
// data.validation_fraction, whose tail is then set aside), it validates before the first and after the last step. A
// training that ends early, by faults.max_consecutive faults in a row, is a result and no error. Errors are those of
// require_trainable(), unreadable data and failing ranks. Collective, with the same configuration on all ranks.
// `progress`: advances with each step.
TrainingRecord run_training(const Config& config, Communicator& communicator, ProgressBar* progress = nullptr);

}  // namespace mantissa
