// Step times of configurations that train in turns in a single process: each for a few steps, then the next. Other load
// on the machine usually lasts longer than a turn and so affects all alike, but only one of several whole runs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/config/config.h"
#include "tools/lab/experiment/paired_comparison.h"

namespace mantissa {

class Communicator;

struct StepTimeOptions {
  double margin = 0.02;  // of equal times, relative
  double level = 0.95;   // of the whole comparison with one reference
  int64_t first_look = 8, look_every = 8, most_pairs = 40;
  double turn_seconds = 0.05;  // a turn has as many steps as take this long, at least one
};
inline constexpr int64_t kRoundsPerPair = 5;

// A configuration against a reference.
struct StepTimeDifference {
  // ln(candidate / reference) of seconds a step on the slowest rank. A pair is the median of kRoundsPerPair rounds,
  // with one turn for each configuration. None if no round had an applied step of both.
  std::optional<MeanDifference> log_ratio{};
  ComparisonVerdict verdict = ComparisonVerdict::kInconclusive;  // better: the candidate is faster
};

// Times the candidate against all references, from the first weights, in the first phase of their precision, until all
// verdicts are known or after most_pairs. All configurations are in memory at once. If that does not fit, returns
// nothing on a single rank and throws Error on several. Collective.
std::optional<std::vector<StepTimeDifference>> compare_step_times(const Config& candidate,
                                                                  const std::vector<Config>& references,
                                                                  const StepTimeOptions& options,
                                                                  Communicator& communicator);

}  // namespace mantissa
