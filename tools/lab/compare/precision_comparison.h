// PrecisionComparison: the same trainings in several precisions.
//
// Runs are paired: the runs of one seed have the same first weights, the same order of the data and the same random
// numbers, and differ in the precision alone. What a seed changes is in both losses of a pair and not in their
// difference. A machine that becomes slower meanwhile would be held against the precision that is measured last; so
// seed after seed is run in all precisions, and each seed begins with the precision behind that which the seed before
// began with: over as many seeds as there are precisions, each has every place once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/lab/experiment/candidates.h"
#include "tools/lab/experiment/training_run.h"

namespace mantissa {

class Communicator;

struct ComparisonOptions {
  std::string title;             // "configs/quickstart.yaml"
  int64_t seeds = 5;             // train.seed, train.seed + 1, ...
  std::string baseline;          // a candidate's name; empty: fp32 if it is there, else the first
  std::optional<double> margin;  // of equal losses, nats; nothing: what seeds change, see ComparedPrecisions::margin()
  double level = 0.95;           // of intervals
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
  std::vector<uint64_t> seeds;
  size_t baseline = 0;
  std::vector<PrecisionRuns> precisions;  // in the order in which they were asked for
};

// The place of the i-th precision that is run with the seed number `seed`: which of `count` it is.
size_t precision_in_turn(size_t seed, size_t turn, size_t count);

// Trains every candidate with every seed. One that require_trainable() refuses is told as such; ConfigError where that
// is the baseline, where options.baseline names none of them. A line of the log for each run. Collective.
PrecisionComparison compare_precisions(const ComparisonOptions& options, const Config& config,
                                       const std::vector<Candidate>& candidates, Communicator& communicator);

}  // namespace mantissa
