// Validation: trains a plan along with 16 bits and fp32 throughout, from the same seeds, until it is known whether the
// plan is as good.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/lab/advise/plan/places.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/lab/experiment/paired_comparison.h"
#include "tools/lab/experiment/step_turns.h"

namespace mantissa {

struct ValidationOptions {
  int64_t steps = 100;                                // most steps of each run
  int64_t most_seeds = 8;                             // at least kFirstLook; 0: no validation
  LossMargin margin{};                                // of equal losses
  int64_t time_pairs = StepTimeOptions().most_pairs;  // most pairs of step times; 0: losses only
  double time_margin = 0.02;                          // between equal step times, relative
  double level = 0.95;
};
inline constexpr int64_t kFirstLook = 3;  // pairs

// The plan against a reference.
struct ReferenceResult {
  std::string name;
  double margin = 0.0;  // nats; the mean over pairs
  std::string why{};    // losses that are equal in the mean are not called so: stands_apart(), too_short()
  std::optional<MeanDifference> loss{};  // final losses, plan - reference; nothing if no pair of runs succeeded
  ComparisonVerdict loss_verdict = ComparisonVerdict::kInconclusive;
  std::optional<MeanDifference> log_time{};  // step times, ln(plan / reference)
  ComparisonVerdict time_verdict = ComparisonVerdict::kInconclusive;
};

// The source of step times: compare_step_times(), or the medians of the runs if memory does not hold all models at
// once.
enum class TimesOf : uint8_t { kTurns, kRuns };

struct PlanValidation {
  int64_t seeds = 0;      // that were run
  int64_t steps = 0;      // in each run
  std::string failure{};  // why a run of the plan failed; then references that succeed with its seed are better
  TimesOf times = TimesOf::kTurns;
  std::vector<ReferenceResult> against{};
};

// The references of plans: `low` with shared formats as configured, then fp32 with the most exact ones.
std::vector<Candidate> references(const Config& config, DType low, const std::vector<PlannedPlace>& places);

// Trains the plan and the references seed by seed, in turns so that each begins equally often, until all losses are
// decided or no seeds are left; then times their steps. A reference that fails is inconclusive. Collective.
PlanValidation validate_plan(const Config& plan, const std::vector<Candidate>& references,
                             const ValidationOptions& options, Communicator& communicator);

}  // namespace mantissa
