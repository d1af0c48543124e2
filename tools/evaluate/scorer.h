// Log-probabilities of given tokens under a model.
#pragma once

#include <span>
#include <vector>

#include "tools/train/loaded_model.h"

namespace mantissa {

// Sequences of equal length, as one pass computes them: (sequences * length) each. Ignored targets (kIgnoreIndex) give
// 0.
class Scorer {
 public:
  // At most `sequences` of `length` tokens at a time.
  Scorer(ModelRuntime& runtime, int64_t sequences, int64_t length);

  // The passes that the given sizes need, for load_model().
  static void run_dry(ModelRuntime& runtime, int64_t sequences, int64_t length);

  // -log p of each target, in nats, fp32: the losses of a training's forward pass on this batch, bit for bit. At most
  // as many sequences as were promised, of that length or shorter.
  std::vector<float> losses(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t length);

 private:
  ModelRuntime& runtime_;
  Tensor tokens_, targets_;  // (sequences * length) i32
};

}  // namespace mantissa
