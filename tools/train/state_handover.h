// HeldState: a training's state on the host, between the session that it comes from and the one that goes on with it in
// another precision. The two do not exist at the same time: a device has room for one.
//
// Pieces are in the form in which checkpoints hold them, so that a training that is handed over has the bits of one
// that was saved and resumed.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "tools/train/training_state.h"

namespace mantissa {

class HeldState {
 public:
  // Copies this rank's share. Collective.
  explicit HeldState(Session& session);

  // Into a session of the same model and data, whose ranks together hold all pieces. Every rank is shown the pieces of
  // all, one by one, since another precision has other shards: no more than one piece of each is in memory besides
  // those that are held. Collective.
  void hand_over(Session& session) const;

  // The same, of which this rank holds nothing: for ranks that there were not when the state was taken.
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
