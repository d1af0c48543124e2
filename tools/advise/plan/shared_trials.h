// What formats that all layers share do to the loss: short trainings from one point, with one of them lowered at a
// time.
//
// A pass shows nothing of them: what moments in 8 bits or weights without masters do shows in the updates that come of
// them, and adds up over as many steps as moments remember.
#pragma once

#include <string>
#include <vector>

#include "tools/advise/plan/plan_places.h"
#include "tools/analyze/sensitivity/statistics.h"
#include "tools/train/state_handover.h"

namespace mantissa {

struct SharedTrials {
  int64_t windows = 4;      // of steps, each from the point on, with data of its own; at least 2
  int64_t steps = 10;       // of a window: about what moments remember
  int64_t evaluations = 2;  // batches behind a window that its loss is the mean of
  int ranks = 1;            // as threads of this process, where there are several
};

// What an option of a place does to the loss, in nats: mean over windows of the loss after them, less that of the same
// training with the most exact option of every place. NaN where a training did not come through.
struct SharedDamage {
  std::string place, option;
  Estimate loss;
};

// Of all options but the most exact, from the point of a training with this model and data. All layers compute in
// `low`, as most of them do in plans. Trainings have a model each, one after the other. `communicator`: of this process
// alone.
std::vector<SharedDamage> try_shared(const Config& config, DType low, const std::vector<PlannedPlace>& shared,
                                     const HeldState& point, const SharedTrials& trials, Communicator& communicator);

// The ranks that trials for a training on so many have: as few as show what several do, one where there is no choice of
// a wire among the places.
int ranks_of_trials(const std::vector<PlannedPlace>& shared, int ranks);

}  // namespace mantissa
