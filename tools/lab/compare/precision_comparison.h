// PrecisionComparison: the same trainings in several precisions.
//
// Runs are paired: the runs of one seed have the same first weights, order of the data and random numbers, and differ
// only in the precision. A seed's effect is in both losses of a pair, not in their difference. A machine that slows
// down meanwhile must not count against the precision measured last. So each seed is run in all precisions before the
// next, and starts one precision later than the seed before. Over as many seeds as precisions, each precision has every
// place once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/lab/experiment/candidates.h"
#include "tools/lab/experiment/paired_comparison.h"
#include "tools/lab/experiment/training_run.h"

namespace mantissa {

class Communicator;

struct ComparisonOptions {
  std::string title;     // "configs/quickstart.yaml"
  int64_t seeds = 5;     // train.seed, train.seed + 1, ...
  std::string baseline;  // a candidate's name; empty: fp32 if it is among them, else the first
  LossMargin margin{};   // of equal losses
  double level = 0.95;   // of intervals
};

struct PrecisionRuns {
  std::string name;
  Config config{};
  std::string refusal{};               // why nothing was trained; empty: it was
  std::vector<TrainingRecord> runs{};  // one for each seed
  std::vector<int64_t> places{};       // of each run among those of its seed, from 0
};

struct PrecisionComparison {
  ComparisonOptions options;
  Config config;  // as given
  int ranks = 1;
  std::string device;  // as the backend describes itself
  int64_t steps = 0;   // of a run that succeeds
  std::vector<uint64_t> seeds{};
  size_t baseline = 0;
  std::vector<PrecisionRuns> precisions{};  // in the requested order
};

// The precision, out of `count`, that is run at place `turn` of seed number `seed`.
size_t precision_in_turn(size_t seed, size_t turn, size_t count);

// Trains every candidate with every seed, and logs a line for each run. A candidate that require_trainable() rejects is
// listed with the reason; ConfigError if it is the baseline, or if options.baseline names no candidate. Collective.
PrecisionComparison compare_precisions(const ComparisonOptions& options, const Config& config,
                                       const std::vector<Candidate>& candidates, Communicator& communicator);

// The largest difference of losses that counts as "equal", nats per token: the mean over the baseline's successful
// runs.
double margin_of(const PrecisionComparison& comparison);

// The runs of a trained precision, compared with the baseline's:
//   runs, succeeded (counts); failure: of the first failed run; overflow_share, fault_share of all steps; sent_bytes
//   step_seconds, time_ratio: {mean, low, high} over seeds, of the runs' medians and of their ratio to the baseline's
//     with the same seed; tokens_per_second at the mean median
//   final_loss, loss_difference: {pairs, mean, stddev, interval} of the runs that succeeded, and of differences to the
//     baseline's for the seeds with which both did
//   verdict: the losses judged with no further pair to come. If only this precision fails with a seed, it is "worse";
//     if only the baseline, "better"; if both, "inconclusive". The baseline's own is "baseline". Never "equal" if
//     too_short() or stands_apart() gives a reason
//   power: the chance that as many seeds call equal precisions "equal" (equivalence_power())
//   why: the reason of an "inconclusive" verdict, else ""
//   grad_norm: median of all applied steps; smallest_scale of all runs; last_scale of the first run; scale_changes in
//     a run; peak_memory_bytes: the largest of any run; memory_ratio to the baseline's
// Unknown figures are null.
nlohmann::json summary_of(const PrecisionComparison& comparison, size_t precision);

// Every figure, with every step of every run.
nlohmann::json to_json(const PrecisionComparison& comparison);

}  // namespace mantissa
