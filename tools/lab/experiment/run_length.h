// Whether runs are long enough for their final losses to say what longer ones would. A difference of precisions that a
// loss of a hundred steps hides may be plain after a thousand.
#pragma once

#include <span>
#include <string>

#include "tools/lab/experiment/training_run.h"

namespace mantissa {

// Losses that are not finite, of steps that were skipped, are left out of all means.

// A run still learns fast if the last quarter of its steps has more than this part of what it has learnt. A loss that
// falls evenly would have a quarter there.
inline constexpr double kMostLateLearning = 0.1;

// The part of what a run has learnt that the last quarter of its steps has: training losses around three quarters of
// the steps and at their end, each the mean of a tenth of them, over those from the first step to the end. Steps after
// the last with half of the greatest learning rate are left out: a rate that goes down to 0 makes the loss of a run
// flat that is far too short. NaN for fewer than 10 steps, and for runs that have learnt nothing.
double late_learning(const TrainingRecord& run);

// How much the difference candidate - baseline of training losses grew from the third to the last quarter of the runs,
// each the mean of the quarter's steps, nats per token. NaN for fewer than 10 steps.
double late_growth(const TrainingRecord& baseline, const TrainingRecord& candidate);

// Why pairs of runs are too short for "equal"; empty if they are not, and for runs whose losses are the same to the
// bit:
//   - the baseline learns fast to the end: late_learning() above kMostLateLearning, in the mean over its runs;
//   - the difference grows, as the interval of late_growth() shows, and would exceed the margin in runs of twice the
//     length, if it grew on evenly.
// As many runs of each, of the same seeds; pairs of which one failed are left out. `margin`: the mean over pairs.
std::string too_short(std::span<const TrainingRecord> baseline, std::span<const TrainingRecord> candidate,
                      double margin, double level);

}  // namespace mantissa
