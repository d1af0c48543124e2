#include "tests/experiments/quadratic_descent.h"

#include "core/kernels/optimizer/args.h"

#include <cmath>
#include <numbers>

namespace mantissa::testing {

double stochastic_variance(double tau) {
  constexpr double kPi = std::numbers::pi;
  if (tau < 0.02) return tau * std::sqrt(2 / kPi);  // where the series converges slowly; off by tau^2
  double sum = 1.0 / 6.0;
  for (int k = 1; k <= 200; ++k) sum -= std::exp(-2 * kPi * kPi * k * k * tau * tau) / (kPi * kPi * k * k);
  return sum;
}

double stationary_variance(const Descent& descent) {
  const double rate = descent.lr * descent.lambda, delta = spacing(descent.format);
  const double noise = descent.lr * descent.lr * descent.sigma * descent.sigma;
  double variance = 1e-30;
  for (int i = 0; i < 400; ++i) {  // rises to the solution, since v is concave in V
    const double tau = std::sqrt(noise + rate * rate * variance) / delta;
    const double v = descent.rounding == WeightRounding::kStochastic ? stochastic_variance(tau) : 1.0 / 12.0;
    variance = (noise + delta * delta * v) / (rate * (2 - rate));
  }
  return variance;
}

}  // namespace mantissa::testing
