// The Hessian of the mean loss of a batch, by Hutchinson's probes.
#pragma once

#include <utility>
#include <vector>

#include "tools/lab/analyze/sensitivity/passes.h"
#include "tools/lab/analyze/sensitivity/shard.h"

namespace mantissa {

// Products with the Hessian are differences of gradients, central ones:
//   H D v = (g(w + D v) - g(w - D v)) / 2 + O(|D v|^3)
// where D is diagonal, one value for each parameter: this part of the root mean square of its weights, or of all
// weights where they are smaller. v has +-1, each drawn by (seed, probe, parameter, element), and
//   E[v_i (H D v)_i] = d_i H_ii
// gives the diagonal and, summed over a parameter, the trace of its block (Hutchinson, "A stochastic estimator of the
// trace of the influence matrix", 1990; Bekas, Kokiopoulou, Saad, "An estimator for the diagonal of a matrix", 2007).
// Smaller steps change no fourth digit of the traces of a small model, and cost digits of the difference; ten times
// this changes the second.
inline constexpr double kHessianStep = 1e-3;

struct HessianProbes {
  std::vector<std::vector<double>> traces;  // of each probe, by parameter
  // By part of this rank's gradient_shard(): sums over probes of what they say of each element.
  std::vector<std::vector<double>> diagonal;
};

// The steps of D, by parameter. Collective.
std::vector<double> hessian_steps(Session& session);

// Adds the probes of numbers from `begin` up to `end`, of the batch that is loaded. The weights are those of the point
// afterwards. Collective.
void probe_hessian(LoweredPasses& passes, const std::vector<double>& steps, int begin, int end, HessianProbes& probes);

// The smallest and the largest element of the diagonal of each parameter, of the mean over probes; `shard` is what its
// parts belong to. Both NaN where there are no probes, and where one element is NaN. Collective.
std::vector<std::pair<double, double>> diagonal_range(const HessianProbes& probes, const Shard& shard,
                                                      Session& session);

// H_ii by a step along one element after the other: the diagonal as it is, at two passes an element, for a model of a
// few thousand parameters. By parameter, element by element; on all ranks. Collective.
std::vector<std::vector<double>> dense_diagonal(LoweredPasses& passes, const std::vector<double>& steps);

}  // namespace mantissa
