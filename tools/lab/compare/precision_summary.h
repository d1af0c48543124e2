// PrecisionSummary: what the runs of one precision come to, beside those of the baseline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/lab/compare/precision_comparison.h"
#include "tools/lab/experiment/paired_difference.h"
#include "tools/lab/experiment/sequential_comparison.h"

namespace mantissa {

// Middle and ends over the seeds.
struct Spread {
  double mean = 0.0, low = 0.0, high = 0.0;
};

struct PrecisionSummary {
  int64_t runs = 0, succeeded = 0;
  std::string failure{};                            // of the first run that failed
  double overflow_share = 0.0, fault_share = 0.0;   // of the steps of all runs
  std::optional<Spread> step_seconds{};             // of the runs' medians; of runs that applied steps
  std::optional<Spread> time_ratio{};               // of medians, to the baseline's with the same seed
  std::optional<double> tokens_per_second{};        // at the mean of these medians
  std::optional<MeanDifference> loss{};             // final, of the runs that succeeded
  std::optional<MeanDifference> loss_difference{};  // to the baseline's, of the seeds with which both did
  ComparisonVerdict verdict = ComparisonVerdict::kInconclusive;
  std::optional<double> grad_norm{};                    // the median of the steps that were applied, in all runs
  std::optional<float> smallest_scale{}, last_scale{};  // of the loss; over all runs, and of the first
  double scale_changes = 0.0;                           // in a run, on average
  std::optional<double> peak_memory_bytes{};            // of any run
  std::optional<double> memory_ratio{};                 // to the baseline's
  double sent_bytes = 0.0;
};

// How large a difference of losses is "equal": the margin that was given, or else seed_margin() of the baseline's runs.
double margin_of(const PrecisionComparison& comparison);

// Of a precision that was not refused. Losses are judged by judge() with no pair to come; but where runs fail with a
// seed with which the baseline's do not, that is "worse", and the other way round "better". (Both: inconclusive.)
PrecisionSummary summary_of(const PrecisionComparison& comparison, size_t precision);

}  // namespace mantissa
