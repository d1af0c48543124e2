// HeldState: everything that one session hands to the next, through host memory.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/autograd/delayed_scales.h"
#include "tools/run/state/run_state.h"
#include "tools/train/step/session.h"

namespace mantissa {

TrainingState state_of(const Session& session);

// Restores scaler, clipper and the number of steps. A scaler of another mode starts afresh, and the log says so.
void continue_from(const TrainingState& state, Session& session);
// After that: the scales of delayed scaling, those of gradients converted to the session's loss scale.
void continue_scales(const TrainingState& state, const DelayedScales::State& scales, Session& session);

// A training's state in host memory, between a session and the next one in another precision. The two do not exist at
// the same time: a device has room for one. Pieces have the form of checkpoints, so that a hand-over gives the bits of
// saving and resuming.
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
