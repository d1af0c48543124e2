// The Hessian of a batch's mean loss, by Hutchinson's probes.
#pragma once

#include <utility>
#include <vector>

#include "tools/lab/analyze/sensitivity/passes.h"
#include "tools/lab/analyze/sensitivity/statistics.h"

namespace mantissa {

// Products with the Hessian are central differences of gradients:
//   H D v = (g(w + D v) - g(w - D v)) / 2 + O(|D v|^3)
// D is diagonal with one value for each parameter: this part of the root mean square of its weights, or of all weights
// if that is larger. Each v is +-1, drawn by (seed, probe, parameter, element), so that
//   E[v_i (H D v)_i] = d_i H_ii
// gives the diagonal and, summed over a parameter, the trace of its block (Hutchinson, "A stochastic estimator of the
// trace of the influence matrix", 1990; Bekas, Kokiopoulou, Saad, "An estimator for the diagonal of a matrix", 2007).
// For a small model, smaller steps change only the fourth digit of the traces and cost digits of the difference; ten
// times this step changes the second digit.
inline constexpr double kHessianStep = 1e-3;

struct HessianProbes {
  std::vector<std::vector<double>> traces;    // [probe][parameter]
  std::vector<std::vector<double>> diagonal;  // [part of this rank's gradient_shard()][element], summed over probes
};

// How many probes to make. Without a wanted interval: `first`. With one, until every score has it: `first`, then twice
// as many each time, at most `most`.
//
// Probes that end as soon as an interval looks narrow enough end too early in the cases in which chance made it narrow.
// All possible looks therefore share the error of 5 % equally (Bonferroni), as in SequentialComparison: the interval of
// the last look misses its mean in at most 5 % of cases, whenever that look was.
struct HessianGoal {
  double share = 0.0;  // wanted half width of a score's interval, of the score's magnitude; 0: none is wanted
  int64_t first = 0, most = 0;

  std::vector<int64_t> looks() const;  // numbers of probes, rising; empty for no probes
  double level() const;                // of the intervals at a look
  // Whether the interval is narrow enough. No probe makes a score known that is not finite: it counts as met.
  bool is_met(const Estimate& score) const;
};

// The diagonal of D, by parameter. Collective.
std::vector<double> hessian_steps(const ShardedState& state);

// H D v for a direction D v: this rank's gradient_shard() part by part. Leaves the weights displaced. Collective.
std::vector<std::vector<float>> hessian_product(LoweredPasses& passes, const TrainingPoint::Direction& direction);

// Adds the probes numbered begin ... end - 1 of the loaded batch. Restores the point. Collective.
void probe_hessian(LoweredPasses& passes, const std::vector<double>& steps, int begin, int end, HessianProbes& probes);

// The smallest and the largest element of each parameter's diagonal, from the mean over probes. `shard`: the shard of
// `probes.diagonal`. Both are NaN if there are no probes or an element is NaN. Collective.
std::vector<std::pair<double, double>> diagonal_range(const HessianProbes& probes, const Shard& shard,
                                                      const ShardedState& state);

}  // namespace mantissa
