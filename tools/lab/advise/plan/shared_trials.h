// What formats that all layers share do to the loss: short trainings from one point, with one of them lowered at a
// time.
//
// A pass shows nothing of them: what moments in 8 bits or weights without masters do shows in the updates that come of
// them, and adds up from step to step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/lab/advise/plan/plan_places.h"
#include "tools/lab/analyze/sensitivity/statistics.h"
#include "tools/train/state_handover.h"

namespace mantissa {

struct SharedTrials {
  int64_t windows = 4;      // of steps, each from the point on, with data of its own; at least 2
  int64_t steps = 10;       // of a window
  int64_t evaluations = 2;  // batches behind a window that its loss is the mean of
  int ranks = 1;            // as threads of this process, where there are several
  double fp16_scale = 1.0;  // of the loss, where `low` is fp16: a power of two
};

// What an option of a place does to the loss, in nats: mean over windows of the loss after them, less that of the same
// training with the most exact option of every place. NaN where a step of it was not applied, or a loss not finite.
struct SharedDamage {
  std::string place, option;
  Estimate loss;
};

// Of all options but the most exact of the shared formats among the places, from the point of a training with this
// model and data. Layers compute in `low`, as most of them do in plans, those that have no such option in fp32. The
// learning rate is the peak of the configuration's schedule, at which formats do most: early in a warm-up nothing would
// be seen of them. Trainings have a model each, one after the other. Nothing where the training that all are compared
// with did not come through. `communicator`: of this process alone.
std::optional<std::vector<SharedDamage>> try_shared(const Config& config, DType low,
                                                    const std::vector<PlannedPlace>& places, const HeldState& point,
                                                    const SharedTrials& trials, Communicator& communicator);

// The ranks that trials for a training on so many have: as few as show what several do, the smallest factor of
// `ranks`; one where there is no choice of a wire among the places.
int ranks_of_trials(const std::vector<PlannedPlace>& places, int ranks);

}  // namespace mantissa
