// StepWork: the passes of one step, from samples to summed gradients.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/train/session.h"

namespace mantissa {

// The first op whose output or gradient was not finite.
struct FoundOp {
  std::string text;                    // the op, its output and its inputs
  std::vector<std::string> stored_by;  // layers: NonFiniteOp::stored_by
};

// Called with every op's layer, name and output. With a hook, no op is fused with another.
using OpHook = std::function<void(std::string_view layer, std::string_view op, Tensor& output)>;

// Options of the passes of one step.
struct PassOptions {
  ProductObserver* observer = nullptr;      // sees the products of the first micro-batch
  const PrecisionPolicy* policy = nullptr;  // in place of the session's: see ModelRuntime::make_tape()
  OpHook after_op{};                        // in place of fault injection
};

class StepWork {
 public:
  explicit StepWork(Session& session);

  // Reads this rank's samples of a step and uploads them: the calls below are about these.
  void load(int64_t step);
  // Non-ignored tokens of the global batch. Collective, unless every token counts.
  int64_t count_global_tokens() const;
  // The gradient of the summed loss that backward passes start from.
  void set_loss_gradient(float value);
  // Queues forward and backward passes and the reduction. The device reads all that differs between steps from memory
  // that load() and set_loss_gradient() wrote, so that a captured run can be replayed. Collective.
  void run(const PassOptions& passes = {});
  // (micro-batches) fp32, on the device: the loss of each in run(), summed over its tokens.
  const Tensor& losses() const { return losses_; }

  // The loss of the loaded samples, summed over this rank's tokens, nats: forward passes with the present weights and
  // the step's dropout. Leaves no record of amaxes behind. `policy`: see PassOptions. Blocks.
  double loss_again(const PrecisionPolicy* policy = nullptr);

  // Runs this rank's forward passes once more with every op checked and, for kBackward, if these are finite, the
  // backward passes, whose gradients replace those of run(). Returns the first op that made something non-finite, on
  // the first rank that has one. Slow; collective.
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
