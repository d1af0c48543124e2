// The loss on validation text.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "tools/model/runtime/model_runtime.h"
#include "tools/train/step/batches.h"

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

}  // namespace mantissa
