// StepWork: the passes of one step, from samples to summed gradients.
#pragma once

#include <string>
#include <vector>

#include "tools/train/session.h"

namespace mantissa {

class StepWork {
 public:
  explicit StepWork(Session& session);

  // Reads this rank's samples of a step: what the calls below are about.
  void load(int64_t step);
  // Non-ignored tokens of the global batch. Collective, unless every token counts.
  int64_t count_global_tokens() const;
  // Queues forward and backward passes, whose gradients are those of `seed` times the summed loss, and the reduction.
  // Collective.
  void run(float seed);
  // (micro-batches) fp32, on the device: what run() found for each, summed over its tokens.
  const Tensor& losses() const { return losses_; }

  // Runs this rank's forward passes once more with every op checked; the first op whose output was not finite, on the
  // first rank that has one. Slow; collective.
  std::string find_culprit();

 private:
  struct MicroBatch {
    std::vector<int32_t> tokens, targets;
    uint32_t first_sample = 0;  // in the step's global batch
  };

  LossOutput forward(Tape& tape, const MicroBatch& batch);
  TapeOptions tape_options(const MicroBatch& batch) const;

  Session& session_;
  int64_t step_ = 0;
  std::vector<MicroBatch> batches_;
  Tensor tokens_, targets_;  // (micro_batch * context) i32, on the device
  Tensor losses_;
};

}  // namespace mantissa
