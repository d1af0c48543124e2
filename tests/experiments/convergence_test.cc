// The mean of |grad f|^2 over T steps of SGD with a constant rate is C1 / T + C2 sigma^2, with rounding of the weights
// as noise. Bottou, Curtis, Nocedal, "Optimization Methods for Large-Scale Machine Learning", SIAM Review 60(2), 2018,
// theorem 4.8: at most 2 (f(w1) - f*) / (lr T) + lr L sigma^2, for unbiased gradients. Stochastic rounding adds delta^2
// v / lr^2 to the gradient's variance (quadratic_descent.h).

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "core/kernels/optimizer/args.h"
#include "tests/experiments/quadratic_descent.h"

namespace mantissa {
namespace {

using namespace testing;

constexpr int kCoordinates = 32;
constexpr double kLr = 0.1, kLambda = 1;

// Means over coordinates and the first T steps, for every T.
std::vector<double> mean_gradient_squares(Descent descent, double offset, int steps) {
  std::vector<double> sums(steps, 0);
  for (int i = 0; i < kCoordinates; ++i) {
    descent.target = 1.5 + spacing(descent.format) * ((i + 0.5) / kCoordinates - 0.5);
    descent.start = descent.target + offset;
    descent.coordinate = static_cast<uint32_t>(i);
    descend(descent, steps,
            [&](int step, double e) { sums[step] += descent.lambda * descent.lambda * e * e / kCoordinates; });
  }
  double sum = 0;
  for (int step = 0; step < steps; ++step) {
    sum += sums[step];
    sums[step] = sum / (step + 1);
  }
  return sums;
}

double slope(double x0, double y0, double x1, double y1) { return std::log(y1 / y0) / std::log(x1 / x0); }

// With negligible noise, the mean goes like 1 / T once the loss has come down. The constant is that of a quadratic:
// |grad f|^2 summed over e (1 - lr lambda)^t.
TEST(Convergence, GoesLikeOneOverTWhereNoiseIsSmall) {
  for (const Format format : {Format::kF16, Format::kBF16}) {
    const double offset = 0.4;
    const std::vector<double> means = mean_gradient_squares(
        {.format = format, .rounding = WeightRounding::kStochastic, .lambda = kLambda, .lr = kLr}, offset, 320);
    const double measured = slope(80, means[79], 320, means[319]);
    const double c1 = 320 * means[319], bound = 2 * 0.5 * kLambda * offset * offset / kLr;
    const double predicted = kLambda * offset * offset / (kLr * (2 - kLr * kLambda));
    std::printf("%-5s slope %.3f, C1 %.4f, of a quadratic %.4f, at most %.4f\n", std::string(info(format).name).c_str(),
                measured, c1, predicted, bound);
    EXPECT_NEAR(measured, -1, 0.05);
    EXPECT_NEAR(c1, predicted, 0.05 * predicted);
    EXPECT_LT(c1, bound);
  }
}

// Floors with gradient noise, rounding noise or both share one constant C2.
TEST(Convergence, HasAFloorInProportionToTheVarianceOfAllNoise) {
  const double c2 = kLr * kLambda / (2 - kLr * kLambda);
  for (const Format format : kWeightFormats) {
    for (const double sigma : {0.02, 0.1, 0.5}) {
      const Descent descent{
          .format = format, .rounding = WeightRounding::kStochastic, .lambda = kLambda, .lr = kLr, .sigma = sigma};
      const double floor = mean_gradient_squares(descent, 0, 20000).back();
      const double tau = kLr * std::sqrt(sigma * sigma + stationary_variance(descent)) / spacing(format);
      const double of_rounding = spacing(format) * spacing(format) * stochastic_variance(tau) / (kLr * kLr);
      const double variance = sigma * sigma + of_rounding;
      std::printf("%-5s sigma %-5g floor %.4e, variance %.4e (rounding %.0f %%), C2 %.4f of %.4f, at most %.4f\n",
                  std::string(info(format).name).c_str(), sigma, floor, variance, 100 * of_rounding / variance,
                  floor / variance, c2, kLr * kLambda);
      EXPECT_NEAR(floor / variance, c2, 0.1 * c2);
      EXPECT_LT(floor / variance, kLr * kLambda);
    }
  }
}

// Twice the noise gives four times the floor if the format is fine enough to have no effect.
TEST(Convergence, HasAFloorThatGoesLikeTheSquareOfSigma) {
  const auto floor = [](double sigma) {
    return mean_gradient_squares({.format = Format::kF16, .rounding = WeightRounding::kStochastic, .sigma = sigma}, 0,
                                 20000)
        .back();
  };
  const double measured = slope(0.05, floor(0.05), 0.8, floor(0.8));
  std::printf("slope of the floor over sigma %.3f\n", measured);
  EXPECT_NEAR(measured, 2, 0.03);
}

// Exception: errors of rounding to nearest are biased. Without noise the bound would be C1 / T, but the mean stays
// where the weights stop.
TEST(Convergence, IsNotThatOfRoundingToNearest) {
  const std::vector<double> means =
      mean_gradient_squares({.format = Format::kBF16, .lambda = kLambda, .lr = kLr}, 0.4, 20000);
  const double bound = kLambda * 0.4 * 0.4 / kLr / 20000, stopped = std::pow(spacing(Format::kBF16) / (2 * kLr), 2);
  std::printf("bf16 to nearest: %.3e after 20000 steps, C1 / T %.3e, lambda^2 b^2 %.3e\n", means.back(), bound,
              stopped);
  EXPECT_GT(means.back(), 10 * bound);
  EXPECT_LT(means.back(), stopped + bound);
}

}  // namespace
}  // namespace mantissa
