// PrecisionComparison: the same trainings in several precisions with several seeds, as `mantissa compare` does them.
//
// Runs are paired: the runs of one seed have the same first weights, order of the data and random numbers, and differ
// only in the precision. A seed's effect is in both losses of a pair, not in their difference. A machine that slows
// down meanwhile must not count against the precision measured last. So each seed is run in all precisions before the
// next, and starts one precision later than the seed before. Over as many seeds as precisions, each precision has every
// place once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/quant/exponent_histogram.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/lab/experiment/paired_comparison.h"
#include "tools/lab/experiment/training_run.h"
#include "tools/run/report/report.h"

namespace mantissa {

class Communicator;

struct ComparisonOptions {
  std::string title;     // "configs/quickstart.yaml"
  int64_t seeds = 5;     // train.seed, train.seed + 1, ...
  std::string baseline;  // a candidate's name; empty: fp32 if it is among them, else the first
  LossMargin margin{};   // of equal losses
  double level = 0.95;   // of intervals
};

using Runs = std::vector<TrainingRecord>;  // one for each seed

struct PrecisionRuns {
  std::string name;
  Config config{};
  std::string refusal{};  // why nothing was trained; empty: it was
  Runs runs{};
  std::vector<int64_t> places{};  // of each run among those of its seed, from 0
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
inline size_t precision_in_turn(size_t seed, size_t turn, size_t count) { return (seed + turn) % count; }

// Trains every candidate with every seed, and logs a line for each run. A candidate that require_trainable() rejects is
// listed with the reason; ConfigError if it is the baseline, or if options.baseline names no candidate. Collective.
PrecisionComparison compare_precisions(const ComparisonOptions& options, const Config& config,
                                       const std::vector<Candidate>& candidates, Communicator& communicator);

// The largest difference of losses that counts as "equal", nats a token: the mean over the baseline's successful runs.
double margin_of(const PrecisionComparison& comparison);

// The runs of a trained precision, compared with the baseline's:
//   runs, succeeded (counts); failure: of the first failed run; overflow_share, fault_share of all steps; sent_bytes
//   step_seconds, time_ratio: {mean, low, high} over seeds, of the runs' medians and of their ratio to the baseline's
//     with the same seed, undone steps included; tokens_per_second at the mean median
//   undone_share: steps undone by rollbacks, over the steps that stayed; the mean over runs
//   final_loss, loss_difference: {pairs, mean, stddev, interval} of the runs that succeeded, and of differences to the
//     baseline's for the seeds with which both did
//   verdict: the losses judged with no further pair to come. If only this precision fails with a seed, it is "worse";
//     if only the baseline, "better"; if both, or with all seeds, "inconclusive". The baseline's own is "baseline".
//     "inconclusive" instead of "equal" if too_short() gives a reason, wherever the interval is
//   power: the chance that as many seeds call equal precisions "equal" (equivalence_power()); 0 if too_short() gives a
//     reason
//   why: the reason of an "inconclusive" verdict, else ""
//   outlier: a pair that stands_apart(), and counts all the same: seed, difference, verdict_without, text
//   grad_norm: median of all applied steps; smallest_scale of all runs; last_scale of the first run; scale_changes in
//     a run; peak_memory_bytes: the largest of any run; memory_ratio to the baseline's
// Unknown figures are null.
Json summary_of(const PrecisionComparison& comparison, size_t precision);

// Every figure, with every step of every run.
Json to_json(const PrecisionComparison& comparison);

// Utility: a single number for loss, time, memory and energy, by given weights.

// The worth of one per cent more of each, relative to the others; 0 or more, and not all 0.
struct UtilityWeights {
  double loss = 0.0, time = 0.0, memory = 0.0, energy = 0.0;
};
// "loss=1,time=0.5,memory=0.2,energy=0.1", or some of these. ConfigError for other texts.
UtilityWeights parse_utility(const std::string& text);
std::string describe(const UtilityWeights& weights);  // as parsed

// Nats a token that the baseline's loss falls while its steps grow e-fold, over the seeds: minus the slope of training
// losses on ln(step), by least squares over the second half of a run. Nothing for fewer than 10 steps or two seeds, and
// if the interval of the slope does not show that the loss falls.
std::optional<double> nats_per_efold(const Runs& baseline, double level);

// The energy of a step in a precision, joules a rank. Asked only if energy has a weight.
using StepEnergy = std::function<double(const std::string& precision)>;

// The utility of each precision that was trained with success, over the baseline's. With the same seed i:
//
//   U_i = -(loss l_i + time ln(t_i / b_i) + memory ln(m / m_base) + energy ln(e / e_base))
//   l_i = (L_i - B_i - r (S_i - S)) / S,   r = mean(L - B) / S
//
// A difference of losses counts as the share of steps to make up for it, so that all terms are logarithms of costs. S
// is nats_per_efold, the mean of the slopes S_i of the baseline's runs, which vary by half of their mean and more. So
// the ratio r is uncertain in its denominator as well: l_i, whose mean is r, linearizes it in both means (delta
// method). Times are the runs' medians; memory and energy are the same for all seeds. The winner has the largest mean.
// It is named if the intervals of its paired differences to all others are above 0, each at the level 1 - (1 - level) /
// others (Bonferroni), and if no run that matters is too_short() for the loss.
//
//   weights; nats_per_efold (null: not known); precisions: for each, name, utility {mean, interval}, and its terms
//   loss, time, memory and energy before weighting, as means; winner (may be null); sentence
Json utility_of(const PrecisionComparison& comparison, const UtilityWeights& weights, const StepEnergy& energy);

struct CompareRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::vector<std::string> precisions = {"fp32", "bf16", "fp16", "fp8"};  // see chosen_candidates()
  int64_t seeds = 5;
  int64_t steps = 0;             // of each run; 0: train.steps
  std::string baseline;          // see ComparisonOptions
  std::string margin = "0.25%";  // parse_loss_margin()
  std::string utility;           // parse_utility(); empty: none
  std::string hardware;          // whose energy counts; empty: none
  std::string json, html;        // files; empty: none
  bool products = true;          // measure the device's GEMM rates for them
};

// The gradients of a model, without loss scales, in each format: steps; elements; formats: of each format, exponents,
// underflow, overflow, recommended as `mantissa analyze model` has them for fp16, with a recommended scale of 1 if
// nothing is lost without one.
Json gradient_underflow(const ExponentHistogram& histogram, int64_t steps);

// Views of to_json(PrecisionComparison); the page also shows "gradients", of gradient_underflow(), and
// "device_formats", of analyze_formats().
std::string comparison_text(const Json& figures);
extern const std::string_view kComparisonPage;  // for page_document(); written by page_scripts()

// Runs on one rank or, under mpirun or srun, on several. Rank 0 prints the report to standard output and writes the
// files, for which it also measures formats and products on its device. Returns the exit code.
int compare_verb(const CompareRequest& request);

}  // namespace mantissa
