// TrainStep: one step of training, from samples to updated weights.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/train/session.h"

namespace mantissa {

// What happened in a step; alike on every rank, except for the time.
struct StepReport {
  int64_t step = 0;
  double loss = 0.0;       // mean over the non-ignored tokens of the global batch, nats
  double grad_norm = 0.0;  // of the unscaled gradient of that mean, before clipping
  double clip_factor = 1.0;
  double learning_rate = 0.0;
  int64_t tokens = 0;       // non-ignored
  float scale = 1.0f;       // used in this step
  float next_scale = 1.0f;  // after it
  ScalerEvent event = ScalerEvent::kUnchanged;
  bool applied = true;
  Verdict verdict;
  std::optional<Offender> offender;    // of non-finite gradients
  std::optional<std::string> culprit;  // of a non-finite loss: the first op whose output was not finite
  double seconds = 0.0;

  // Why the step was skipped, in one line; empty when it was applied.
  std::string skip_reason(const ParameterSet& parameters) const;
};

class TrainStep {
 public:
  explicit TrainStep(Session& session);

  // Runs session.next_step and advances it. Collective.
  StepReport run();

 private:
  struct MicroBatch {
    std::vector<int32_t> tokens, targets;
    uint32_t first_sample = 0;  // in the step's global batch
  };

  void load_batches(int64_t step);
  LocalLoss forward_backward(int64_t step, int64_t global_tokens, float scale);
  Tensor upload(const Tensor& device, const std::vector<int32_t>& host);
  // Re-runs this rank's forward passes with every op checked; the first culprit of the first rank that has one.
  std::string find_culprit(int64_t step);
  TapeOptions tape_options(int64_t step, const MicroBatch& batch) const;

  Session& session_;
  double boost_;
  std::vector<MicroBatch> batches_;
  Tensor tokens_, targets_;  // (micro_batch * context) i32, on the device
};

}  // namespace mantissa
