// TrainingRecord: a training from its first step to its last in this process, as a result to be compared with others.
// Nothing is written; with precision.adaptive.rollback there are checkpoints beside the run folder until it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend/decorators.h"
#include "core/base/progress_bar.h"
#include "core/kernels/fp8_gemm_support.h"
#include "tools/config/config.h"
#include "tools/train/step/memory_prediction.h"

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
  int64_t undone = 0;                      // further steps, undone by rollbacks and trained again
  int64_t tokens_per_step = 0;             // positions of the global batch
  MemoryTable memory{};                    // of rank 0, as measured, in the last phase of the precision
  // The most on any rank, in any phase: the table's total; on a GPU all memory taken from it. 0 if nothing was trained.
  size_t peak_memory_bytes = 0;
  double sent_bytes = 0.0;  // in a step, by a rank to others, where no two share memory

  // It came to its last step, with a finite loss and not without an update.
  bool succeeded() const { return failure.empty(); }
  // The loss of the first weights: the validation loss before the first step, or without validation text the first
  // step's. NaN if nothing was trained.
  double first_loss() const;
  // The last validation loss, or without validation text the mean of the last tenth of steps; NaN: nothing was trained.
  double final_loss() const;
  // Over the applied steps after the first two, if there are more: those also allocate memory and create kernels.
  // Skipped steps may be run again to find the reason. NaN if none was applied.
  double median_step_seconds() const;
  double tokens_per_second() const { return static_cast<double>(tokens_per_step) / median_step_seconds(); }
  double undone_share() const;  // undone steps over the steps that stayed
  // The time of a step of the result, with its share of the undone steps.
  double cost_of_step() const { return median_step_seconds() * (1.0 + undone_share()); }
  double skipped_share(StepResult kind) const;  // of all steps
  int64_t scale_changes() const;
  float smallest_scale() const;
};

// The configuration with other random numbers, first weights and order of the data.
Config with_seed(Config config, uint64_t seed);

// ConfigError before anything is trained: for settings that are impossible, or rejected by the model or these ranks.
void require_trainable(const Config& config, Communicator& communicator);

// Trains as `mantissa train` does, from the first weights to TrainConfig::last_step(), but writes nothing: no
// checkpoints, samples, probe files or profiles. If train.eval_interval is 0 and there is validation text (or
// data.validation_fraction, whose tail is then set aside), it validates before the first and after the last step. A
// training that ends early, by faults.max_consecutive faults in a row, is a result and no error. Errors are those of
// require_trainable(), unreadable data and failing ranks. Collective, with the same configuration on all ranks.
// `progress`: advances with each step.
TrainingRecord record_training(const Config& config, Communicator& communicator, ProgressBar* progress = nullptr);

// Whether runs are long enough for their final losses to stand for longer runs. A difference of precisions that is
// hidden after a hundred steps may be plain after a thousand. Means leave out non-finite losses of skipped steps.

// A run still learns fast if the last quarter of its steps has more than this part of what it has learnt. A loss that
// falls evenly would have a quarter there.
inline constexpr double kMostLateLearning = 0.1;

// The last quarter's share of a run's learning: the fall of the training loss from three quarters of the steps to the
// end, over its fall from the first step to the end. Both late losses are means of a tenth of the steps. Steps after
// the last with half of the greatest learning rate are left out: a rate that goes down to 0 makes any loss flat, also
// if the run is far too short. NaN for fewer than 10 steps, and for runs that have learnt nothing.
double late_learning(const TrainingRecord& run);

// How much the difference candidate - baseline of training losses grew from the third to the last quarter of the runs,
// each the mean of the quarter's steps, nats per token. NaN for fewer than 10 steps.
double late_growth(const TrainingRecord& baseline, const TrainingRecord& candidate);

// Why pairs of runs are too short for "equal"; empty if they are not, and for runs of the same losses to the bit:
//   - the baseline may learn fast to the end: the interval of late_learning() over its runs reaches beyond
//     kMostLateLearning; of a single run, the value;
//   - the difference grows, as the interval of late_growth() shows, and would exceed the margin in runs of twice the
//     length, if it grew on evenly.
// As many runs of each, of the same seeds; pairs with a failed run are left out. `margin`: the mean over pairs.
std::string too_short(std::span<const TrainingRecord> baseline, std::span<const TrainingRecord> candidate,
                      double margin, double level);

// StepCalls: every kernel call and message of one training step, recorded in a dry run.
struct StepCalls {
  std::vector<KernelCall> calls;  // of one rank, in order, with the phases of a profile
  // Bytes of collectives that a rank sends to others, by phase: gradients ("backward", "reduce"), records ("decide"),
  // updated weights ("update").
  std::map<std::string_view, double> sent_bytes;

  double sent() const;
};

// The calls of one rank of `ranks`, in a step after the first: micro-batches, reduction, decision and update. Ranks
// share no memory. `support` and `packing`: see DryRunOptions. ConfigError as DryRun.
StepCalls walk_calls(const Config& config, int ranks, Fp8GemmSupport support = Fp8GemmSupport::kNone,
                     Backend* packing = nullptr);

}  // namespace mantissa
