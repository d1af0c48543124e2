// The passes of one step, and their measurements.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/metrics/step_report.h"
#include "tools/train/step/session.h"

namespace mantissa {

// The first op whose output or gradient was not finite.
struct FoundOp {
  std::string text;                    // the op, its output and its inputs
  std::vector<std::string> stored_by;  // layers: NonFiniteOp::stored_by
};

// Options of the passes of one step.
struct PassOptions {
  ProductObserver* observer = nullptr;      // sees the products of the first micro-batch
  const PrecisionPolicy* policy = nullptr;  // in place of the session's: see ModelRuntime::make_tape()
  OpHook after_op{};                        // in place of fault injection
};

// The passes of one step, from samples to summed gradients.
class StepWork {
 public:
  // The session must outlive the object.
  explicit StepWork(Session& session);

  // Reads this rank's samples of a step, unless they are at hand, and uploads them: the calls below are about these.
  void load(int64_t step);
  // Reads the samples of the kAhead steps after this one, as far as the run goes. Returns the error; empty without. A
  // rank with such an early error can warn the others, and all stop with whole weights.
  std::string read_ahead(int64_t step);
  // Targets of the global batch. Collective, unless every token counts.
  int64_t count_global_targets() const;
  // The same, at least 1: the loss is divided by it. Without targets the loss is 0 and there is no gradient.
  int64_t count_global_tokens() const { return std::max<int64_t>(count_global_targets(), 1); }
  // Backward passes start from factor / tokens, the gradient of the summed loss. All gradients of the step carry the
  // factor: loss scale * prescale.
  void set_loss_gradient(double factor, int64_t tokens);
  // Queues forward and backward passes and the reduction. All that differs between steps lies in device memory, written
  // by load() and set_loss_gradient(), so a captured run can be replayed. Collective.
  void run(const PassOptions& passes = {});
  // (micro-batches) fp32 or fp64, on the device: the loss of each in run(), summed over its tokens.
  const Tensor& losses() const { return losses_; }

  // The loss of the loaded samples, summed over this rank's tokens, nats: forward passes with the present weights and
  // the step's dropout. Leaves no record of amaxes. `policy`: see PassOptions. Blocks.
  ExactSum loss_again(const PrecisionPolicy* policy = nullptr);

  // Passes of each micro-batch by itself, with the present weights and the step's dropout: the squared norms of their
  // gradients, summed over the micro-batches of all ranks, in double. They carry the factor of set_loss_gradient() and
  // replace the gradients. Leaves no record of amaxes. Collective; blocks.
  double sum_of_squared_norms();

  // Runs this rank's forward passes once more with every op checked and, for kBackward, if these are finite, the
  // backward passes, whose gradients replace those of run(). Returns the first op with a non-finite result, on the
  // first such rank. Slow; collective.
  std::optional<FoundOp> find_culprit(Pass pass);

 private:
  // find_culprit() on this rank; the text names the micro-batch.
  std::optional<FoundOp> find_own_culprit(Pass pass);
  // All micro-batches of a step.
  struct Samples {
    int64_t step = -1;
    std::vector<int32_t> tokens, targets, starts;  // starts: if the data packs documents
  };
  // On a GPU the next step has started when the ranks learn that a rank asks to stop.
  static constexpr int64_t kAhead = 2;

  const Samples& read(int64_t step);
  LossOutput forward(Tape& tape, size_t micro_batch);
  TapeOptions tape_options(size_t micro_batch) const;
  Tensor part_of(const Tensor& whole, size_t micro_batch) const {
    return whole.slice(static_cast<int64_t>(micro_batch) * whole.dim(1), whole.dim(1));
  }

  const Config& config_;
  ModelRuntime& runtime_;
  Communicator& communicator_;
  const Batches& batches_;
  const int64_t& skipped_batches_;  // Session::skipped_batches
  ShardedOptimizer& optimizer_;
  GradientReducer& reducer_;
  FaultInjection& faults_;
  int64_t step_ = 0;
  // By step: the steps ahead, the present step, and the previous step, which may run again.
  std::array<Samples, kAhead + 2> samples_;
  int64_t micro_batches_;                // of a lane
  std::vector<uint32_t> first_samples_;  // of each micro-batch of this rank's lanes, in the step's global batch
  // (micro-batches, micro_batch * context) i32, on the device; starts: if the data packs documents.
  Tensor tokens_, targets_, starts_;
  Tensor step_number_, loss_gradient_, factor_;  // (1) i32, (1) of the losses and (1) fp32, on the device
  Tensor losses_;
};

}  // namespace mantissa
