// StepWork: the passes of one step, from samples to summed gradients.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/train/session.h"

namespace mantissa {

// An op that made something that was not finite.
struct FoundOp {
  std::string text;                    // what it made, and of what
  std::vector<std::string> stored_by;  // layers: NonFiniteOp::stored_by
};

class StepWork {
 public:
  explicit StepWork(Session& session);

  // Reads this rank's samples of a step and sends them to the device: what the calls below are about.
  void load(int64_t step);
  // Non-ignored tokens of the global batch. Collective, unless every token counts.
  int64_t count_global_tokens() const;
  // What the gradients of the summed loss start from.
  void set_loss_gradient(float value);
  // Queues forward and backward passes and the reduction. All that differs between steps is read by the device from
  // memory which load() and set_loss_gradient() wrote, so that a captured run can be repeated. `observer`, if any, is
  // shown the products of the first micro-batch. `policy`: see ModelRuntime::make_tape(). Collective.
  void run(ProductObserver* observer = nullptr, const PrecisionPolicy* policy = nullptr);
  // (micro-batches) fp32, on the device: what run() found for each, summed over its tokens.
  const Tensor& losses() const { return losses_; }

  // The loss of what load() has read, summed over this rank's tokens, nats, in forward passes with the weights as they
  // are now, with the dropout of the step. Leaves no record of amaxes behind. `policy`: see ModelRuntime::make_tape().
  // Blocks.
  double loss_again(const PrecisionPolicy* policy = nullptr);

  // Runs this rank's forward passes once more with every op checked, and for kBackward, if these are finite, the
  // backward passes, too, whose gradients replace those of run(): the first op that made something that was not finite,
  // and of what, on the first rank that has one. Nothing if all was finite. Slow; collective.
  std::optional<FoundOp> find_culprit(Pass pass);

 private:
  // On this rank, in the micro-batch that the text names.
  std::optional<FoundOp> find_own_culprit(Pass pass);
  LossOutput forward(Tape& tape, size_t micro_batch);
  TapeOptions tape_options(size_t micro_batch) const;

  Session& session_;
  int64_t step_ = 0;
  std::vector<int32_t> host_tokens_, host_targets_;  // of all micro-batches
  std::vector<uint32_t> first_samples_;              // of each micro-batch, in the step's global batch
  Tensor tokens_, targets_;                          // (micro-batches, micro_batch * context) i32, on the device
  Tensor step_number_, loss_gradient_;               // (1) i32 and (1) fp32, on the device
  Tensor losses_;
};

}  // namespace mantissa
