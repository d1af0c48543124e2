// Log-probabilities of given tokens under a model.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "tools/model/runtime/loaded_model.h"

namespace mantissa {

// Sequences of equal length, as one pass computes them. Ignored targets (kIgnoreIndex) have a loss of 0.
struct ScoredPass {
  std::vector<int32_t> tokens, targets;  // (sequences * length) each
  int64_t length = 0;
};

class Scorer {
 public:
  // At most `sequences` of `length` tokens at a time. `communicator`: of the ranks that share the work; null: there are
  // no others. References must outlive the object.
  Scorer(ModelRuntime& runtime, int64_t sequences, int64_t length, Communicator* communicator = nullptr);

  // The passes that the given sizes need, for load_model().
  static void run_dry(ModelRuntime& runtime, int64_t sequences, int64_t length);

  // -log p of each target, in nats, fp32: the losses of a training's forward pass on this batch, bit for bit. At most
  // as many sequences as were promised, of that length or shorter.
  std::vector<float> losses(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t length);

  // Computes `count` passes, each on a single rank, so that its bits do not depend on the number of ranks. `make` gives
  // this rank's passes. `take` receives the losses of all passes, in order, on every rank. Collective.
  void run(size_t count, const std::function<ScoredPass(size_t pass)>& make,
           const std::function<void(size_t pass, std::span<const float> losses)>& take);

 private:
  ModelRuntime& runtime_;
  Communicator* const communicator_;
  Tensor tokens_, targets_;  // (sequences * length) i32
};

}  // namespace mantissa
