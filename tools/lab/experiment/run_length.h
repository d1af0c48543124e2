// Whether runs are long enough for their final losses to stand for longer runs. A difference of precisions that is
// hidden after a hundred steps may be plain after a thousand.
#pragma once

#include <span>
#include <string>

#include "tools/lab/experiment/training_run.h"

namespace mantissa {

// Means leave out the non-finite losses of skipped steps.

// A run still learns fast if the last quarter of its steps has more than this part of what it has learnt. A loss that
// falls evenly would have a quarter there.
inline constexpr double kMostLateLearning = 0.1;

// The last quarter's share of a run's learning: the fall of the training loss from three quarters of the steps to the
// end, over its fall from the first step to the end. Both late losses are means of a tenth of the steps. Steps after
// the last with half of the greatest learning rate are left out: a rate that goes down to 0 makes any loss flat, also
// if the run is far too short. NaN for fewer than 10 steps, and for runs that have learnt nothing.
double late_learning(const TrainingRecord& run);

// How much the difference candidate - baseline of training losses grew from the third to the last quarter of the runs,
// each the mean of the quarter's steps, nats per token. NaN for fewer than 10 steps.
double late_growth(const TrainingRecord& baseline, const TrainingRecord& candidate);

// Why pairs of runs are too short for "equal"; empty if they are not, and for runs whose losses are the same to the
// bit:
//   - the baseline learns fast to the end: late_learning() above kMostLateLearning, in the mean over its runs;
//   - the difference grows, as the interval of late_growth() shows, and would exceed the margin in runs of twice the
//     length, if it grew on evenly.
// As many runs of each, of the same seeds; pairs with a failed run are left out. `margin`: the mean over pairs.
std::string too_short(std::span<const TrainingRecord> baseline, std::span<const TrainingRecord> candidate,
                      double margin, double level);

}  // namespace mantissa
