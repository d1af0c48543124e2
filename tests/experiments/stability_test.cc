// Stability: gradient descent on 1/2 lambda e^2 converges for lr lambda < 2. How rounding affects that edge.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "core/quant/scales.h"
#include "tests/experiments/quadratic_descent.h"

namespace mantissa {
namespace {

using namespace testing;

// Stochastic rounding is unbiased and leaves the edge in place. The loss that it leaves grows like 1 / (2 - lr lambda)
// near the edge: the formula of quadratic_floor_test.cc, up to 0.05 from the edge.
TEST(Stability, StochasticRoundingIsAmplifiedNearTheEdge) {
  for (const Format format : {Format::kF16, Format::kBF16, Format::kE4M3}) {
    for (const double rate : {1.0, 1.5, 1.8, 1.95}) {
      double squares = 0, predicted = 0;
      constexpr int kCoordinates = 32, kSteps = 8000;
      for (int i = 0; i < kCoordinates; ++i) {
        const double target = 1.5 + spacing(format) * ((i + 0.5) / kCoordinates - 0.5);
        const Descent descent{.format = format,
                              .rounding = WeightRounding::kStochastic,
                              .lambda = rate / 0.1,
                              .start = target,
                              .target = target,
                              .coordinate = static_cast<uint32_t>(i)};
        descend(descent, kSteps, [&](int, double e) { squares += e * e / kSteps / kCoordinates; });
        predicted += stationary_variance(descent) / kCoordinates;
      }
      std::printf("%-5s lr lambda %.2f variance %.4f delta^2 predicted %.4f ratio %.3f\n",
                  std::string(info(format).name).c_str(), rate, squares / std::pow(spacing(format), 2),
                  predicted / std::pow(spacing(format), 2), squares / predicted);
      EXPECT_NEAR(squares / predicted, 1, 0.1);
    }
  }
}

// Rounding to nearest ends in an oscillation: e -> -(1 - epsilon) e with epsilon = 2 - lr lambda is rounded back to -e
// if epsilon |e| < delta / 2. Its amplitude is delta / (2 epsilon), within a step of the format.
TEST(Stability, RoundingToNearestOscillatesNearTheEdge) {
  for (const Format format : {Format::kF16, Format::kBF16}) {
    const double delta = spacing(format);
    for (const double epsilon : {0.2, 0.1, 0.05, 0.02}) {
      const Descent descent{.format = format, .lambda = (2 - epsilon) / 0.1, .start = 1.95, .target = 1.5};
      double last = 0;
      descend(descent, 5000, [&](int, double e) { last = std::abs(e); });
      const double amplitude = delta / (2 * epsilon);
      std::printf("%-5s 2 - lr lambda %.2f amplitude %.2f delta, predicted %.2f\n",
                  std::string(info(format).name).c_str(), epsilon, last / delta, amplitude / delta);
      EXPECT_LE(last, amplitude + delta);
      EXPECT_GE(last, amplitude - delta);
    }
  }
}

// e| step by step, with gradients rounded to a format with delayed scaling.
std::vector<double> delayed_descent(Format format, double rate, double start, int history_length, int steps) {
  const NarrowFormat narrow = narrow_format(format);
  const DelayedScalingOptions options{.history = history_length};
  std::vector<uint32_t> history(history_length, 0);
  float scale = tensor_scale(magnitude_bits(static_cast<float>(start)), narrow.max, 0, 1);
  double e = start;
  std::vector<double> magnitudes;
  for (int step = 0; step < steps; ++step) {
    magnitudes.push_back(std::abs(e));
    const auto gradient = static_cast<float>(e);
    const double rounded = static_cast<double>(round_to(narrow, gradient * scale)) / scale;
    scale = next_delayed_scale(options, history.data(), step, magnitude_bits(gradient), narrow.max, scale);
    e -= rate * rounded;
  }
  return magnitudes;
}

// The mean growth factor of a step.
double growth_a_step(const std::vector<double>& magnitudes) {
  return std::pow(magnitudes.back() / magnitudes.front(), 1.0 / static_cast<double>(magnitudes.size() - 1));
}

// A scale from earlier steps saturates a gradient that has grown since, at the history's largest, m. The edge stays,
// but beyond it, with r = lr lambda > 2, gradients grow by less than r - 1 a step. Either they go m, (r - 1) m (which
// saturates and leads back to m), (r - 1) m, (r - 1)^2 m: a factor of r - 1 in three steps. Or each saturates at the
// one before, a'' = r a - a', a factor of (sqrt(1 + 4 r) - 1) / 2 a step. The rounding decides.
TEST(Stability, DelayedScalingSlowsADivergenceDown) {
  for (const Format format : {Format::kE4M3, Format::kE5M2}) {
    for (const double rate : {1.5, 1.8}) EXPECT_LT(growth_a_step(delayed_descent(format, rate, 1e-3, 16, 60)), 1);
    for (const double rate : {2.5, 3.0, 4.0}) {
      const double growth = growth_a_step(delayed_descent(format, rate, 1e-6, 16, 61));
      const double in_threes = std::cbrt(rate - 1), saturated = 0.5 * (std::sqrt(1 + 4 * rate) - 1);
      std::printf("%-5s lr lambda %.1f growth a step %.3f, predicted %.3f to %.3f, unrounded %.1f\n",
                  std::string(info(format).name).c_str(), rate, growth, in_threes, saturated, rate - 1);
      EXPECT_GT(growth, 0.9 * in_threes);
      EXPECT_LT(growth, 1.1 * saturated);
    }
  }
}

// With only the last amax, every second gradient saturates at the one before: m, (r - 1) m, m for any r, up to
// roundings. A divergence then becomes an oscillation, which a loss shows less clearly.
TEST(Stability, DelayedScalingByTheLastAmaxHidesADivergence) {
  for (const double rate : {2.5, 3.0, 4.0}) {
    const std::vector<double> magnitudes = delayed_descent(Format::kE4M3, rate, 1e-3, 1, 60);
    EXPECT_LT(std::ranges::max(magnitudes), 4 * (rate - 1) * 1e-3) << rate;
    EXPECT_GT(std::ranges::min(magnitudes), 1e-3 / 4) << rate;
  }
}

}  // namespace
}  // namespace mantissa
