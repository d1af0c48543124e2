// PlanValidation: a plan trained beside 16 bits and fp32 throughout, from the same seeds, until it is known whether it
// is as good as they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/lab/experiment/paired_comparison.h"
#include "tools/lab/experiment/step_turns.h"
#include "tools/lab/experiment/training_run.h"

namespace mantissa {

class Communicator;

struct ValidationOptions {
  int64_t steps = 100;             // of each run
  int64_t most_seeds = 8;          // at least kFirstLook; 0: nothing is validated
  std::optional<double> margin{};  // of equal losses, nats; nothing: seed_margin() of the reference's first seeds
  int64_t time_pairs = StepTimeOptions().most_pairs;  // of step times, at most; 0: losses alone are compared
  double time_margin = 0.02;                          // of equal step times, relative
  double level = 0.95;
};
inline constexpr int64_t kFirstLook = 3;  // pairs

// The plan against a reference.
struct ReferenceResult {
  std::string name;
  double margin = 0.0;
  std::optional<MeanDifference> loss{};  // final losses, plan - reference; nothing where no pair of runs succeeded
  ComparisonVerdict loss_verdict = ComparisonVerdict::kInconclusive;
  std::optional<MeanDifference> log_time{};  // of step times, ln(plan / reference)
  ComparisonVerdict time_verdict = ComparisonVerdict::kInconclusive;
};

// Where step times come from: steps by turns (compare_step_times()), or, where not all models fit into memory at once,
// the medians of the runs.
enum class TimesOf : uint8_t { kTurns, kRuns };

struct PlanValidation {
  ValidationOptions options{};
  int64_t seeds = 0;      // that were run
  int64_t steps = 0;      // of each run: no more than the training has
  std::string failure{};  // of a run of the plan, which makes it worse than what comes through with that seed
  TimesOf times = TimesOf::kTurns;
  std::vector<ReferenceResult> against{};
};

struct NamedConfig {
  std::string name;
  Config config;
};

// Trains `plan` and the references with seed after seed, in turn, so that every one begins as often as the others,
// until all losses are decided or there are no more seeds; then times their steps. A reference that fails is
// inconclusive. Collective.
PlanValidation validate_plan(const Config& plan, const std::vector<NamedConfig>& references,
                             const ValidationOptions& options, Communicator& communicator);

}  // namespace mantissa
