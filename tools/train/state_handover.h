// HeldState: a training's state in host memory, between a session and the next one in another precision. The two do not
// exist at the same time: a device has room for one.
//
// Pieces have the form of checkpoints, so that a hand-over gives the bits of saving and resuming.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "tools/train/run_state.h"

namespace mantissa {

class HeldState {
 public:
  // Copies this rank's shard. Collective.
  explicit HeldState(Session& session);

  // Into a session of the same model and data. Another precision has other shards: every rank is shown the pieces of
  // all ranks, one of each at a time. Collective.
  void hand_over(Session& session) const;

  // The same numbers without this rank's pieces: for ranks that did not exist when the state was taken.
  HeldState without_pieces() const { return {numbers_, scales_}; }

  const TrainingState& numbers() const { return numbers_; }

 private:
  HeldState(TrainingState numbers, DelayedScales::State scales)
      : numbers_(std::move(numbers)), scales_(std::move(scales)) {}

  TrainingState numbers_;
  DelayedScales::State scales_;
  std::vector<std::vector<std::byte>> pieces_;
};

}  // namespace mantissa
