// Step times of configurations that are trained by turns: a few steps of one, a few of the next, in one process. What
// else a machine does lasts longer than a turn, mostly, and so meets all of them alike; of whole runs, one after the
// other, it would meet one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/config/config.h"
#include "tools/lab/experiment/sequential_comparison.h"

namespace mantissa {

class Communicator;

struct StepTimeOptions {
  double margin = 0.02;  // of equal times, relative
  double level = 0.95;   // of the whole comparison with one reference
  int64_t first_look = 8, look_every = 8, most_pairs = 40;
  double turn_seconds = 0.05;  // a turn is of as many steps as take this long, one at least
};
inline constexpr int64_t kRoundsPerPair = 5;

// A configuration against a reference.
struct StepTimeDifference {
  // ln(candidate / reference) of seconds a step on the slowest rank; a pair is the median of kRoundsPerPair rounds, in
  // each of which each has a turn. Nothing where no round had a step of both that was applied.
  std::optional<MeanDifference> log_ratio{};
  ComparisonVerdict verdict = ComparisonVerdict::kInconclusive;  // better: the candidate is faster
};

// The candidate beside all references, from first weights, in the first phase of their precision, until all times are
// decided or there have been most_pairs. All of them are in memory at once: nothing where a device of a single rank has
// no room for that, an Error where one of several has none. Collective.
std::optional<std::vector<StepTimeDifference>> compare_step_times(const Config& candidate,
                                                                  const std::vector<Config>& references,
                                                                  const StepTimeOptions& options,
                                                                  Communicator& communicator);

}  // namespace mantissa
