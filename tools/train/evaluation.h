// The loss on validation text, and the observer that measures it.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "tools/model/runtime/model_runtime.h"
#include "tools/train/step/batches.h"
#include "tools/train/trainer.h"

namespace mantissa {

class Evaluation {
 public:
  // References must outlive the object.
  Evaluation(const Config& config, ModelRuntime& runtime, const Batches& batches, Communicator& communicator);

  // Whether there is validation text and train.eval_interval asks for it.
  bool enabled() const { return sequences_ > 0; }
  int64_t sequences() const { return sequences_; }
  // Mean loss over the non-ignored tokens of the first sequences of the validation text, nats: the same set in every
  // call and for every number of ranks. DataError, alike on all ranks, if a rank cannot read its part. Collective.
  double run();

 private:
  const Config& config_;
  ModelRuntime& runtime_;
  const Batches& batches_;
  Communicator& communicator_;
  int64_t sequences_ = 0;
  Tensor tokens_, targets_, starts_;  // (micro_batch * context) i32; starts: if the data packs documents
};

// Evaluates before the first step, at train.eval_interval, and at the end, and tells all observers. Comes first among
// them: what they save or decide then includes the loss.
class Validation final : public TrainObserver {
 public:
  // The session must outlive the object.
  explicit Validation(Session& session);

  void before_step(Trainer& trainer, int64_t step) override {
    if (step == 0) run(trainer);
  }
  bool pauses_after(int64_t steps) const override { return is_due(interval_, steps); }
  void at_pause(Trainer& trainer) override { run(trainer); }
  void at_end(Trainer& trainer, Ending ending) override {
    if (ending == Ending::kDone) run(trainer);
  }

 private:
  // DataError, alike on all ranks: ends the run.
  void run(Trainer& trainer);

  const int64_t interval_;
  Evaluation evaluation_;
};

}  // namespace mantissa
