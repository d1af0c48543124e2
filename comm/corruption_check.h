// CorruptionCheck: looks for silent corruption of optimizer state and weights. Collective: all ranks find the same.
//
// Working weights. Each rank knows the digests of the weights that its updates wrote. A sharded rank's copy of another
// rank's weights must have the owner's digest, so a difference names the rank with the corrupted copy, for two ranks as
// well. If all copies differ from the owner's record, or all but the owner's among three ranks or more, the owner has
// sent corrupted weights. Weights that are gathered as codes have no record: the majority of ranks decides, and two
// ranks that differ are both suspect. So are replicated ranks whose records differ.
#pragma once

#include "comm/sharded_state.h"

namespace mantissa {

class CorruptionCheck {
 public:
  explicit CorruptionCheck(ShardedState& state);  // `state` must outlive the object. Its optimizer must have digests.

  // Checks the working weights: passes must read the values of the last update. With no update under way. Blocks.
  std::vector<Corruption> weights() { return compare_weights(state_.optimizer.read_digests()); }
  // Findings of the updates so far: an update read state other than the last one wrote, or replicas differ. Blocks.
  std::vector<Corruption> updates();
  // State and working weights as they are now, and the findings of updates. A pass over all of them. Blocks.
  std::vector<Corruption> at_rest();

  // Makes replicated state equal again: ranks with different state get the state of the lowest rank not named in
  // `findings` (rank 0 if all are named). Returns one line about it; empty if no rank differed. Collective; blocks.
  std::string unite(const std::vector<Corruption>& findings);

  // By trainable parameter: this rank's gradients of the last passes, before reduction, in the parts that it sends.
  // Repeated passes give the same. Blocks.
  std::vector<Digest> gradients();
  // Where two of these differ, on all ranks. Collective.
  std::vector<Corruption> differences(const std::vector<Digest>& before, const std::vector<Digest>& now);

 private:
  // A part of a parameter whose working weights have one digest.
  struct WeightPiece {
    int bucket = -1;
    Segment segment{};  // the offset counts from the bucket's start
    int owner = -1;     // rank; -1: every rank
    size_t own = 0;     // number among the owner's pieces
    bool is_coded = false;
  };

  void make_pieces();
  std::vector<Digest> digests_of(const std::vector<Tensor>& tensors);
  // Copies the state of a piece from `source` to the ranks that take it. Collective.
  void take_over(size_t piece, int source, bool takes);
  std::vector<Corruption> replicas(const std::vector<StateDigests>& written);
  std::vector<Corruption> compare_weights(const std::vector<StateDigests>& written);

  ShardedState& state_;
  std::vector<WeightPiece> pieces_;
  std::vector<Tensor> weights_;  // by piece
  Tensor digests_;               // of weights or gradients
};

}  // namespace mantissa
