// The formulas of the signals for adaptive precision.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "amp/adaptive_precision.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kEndless = std::numeric_limits<double>::infinity();

// By hand: gradients (3, 0) and (0, 1) of two micro-batches add up to (3, 1). The variance between their contributions
// is that of the mean times n: the sum over components of (a - b)^2 / (n (n - 1)) = (9 + 1) / 2, over the squared norm
// of 10, and half of it again since contributions are halves of means.
TEST(GradientNoise, IsTheVarianceOfTheMeanOverItsSquare) {
  EXPECT_DOUBLE_EQ(gradient_noise_of(9.0 + 1.0, 10.0, 2), (2.0 * 10.0 - 10.0) / 10.0);
  EXPECT_DOUBLE_EQ(gradient_noise_of(2 * 4.0, 16.0, 2), 0.0) << "both gradients are (2)";
  EXPECT_TRUE(std::isnan(gradient_noise_of(1.0, 1.0, 1)));
  EXPECT_TRUE(std::isnan(gradient_noise_of(1.0, 0.0, 4)));
  EXPECT_TRUE(std::isnan(gradient_noise_of(kNoNumber, 1.0, 4)));
  EXPECT_TRUE(std::isnan(gradient_noise_of(1.0, kEndless, 4)));
}

// 64 micro-batches whose gradients are a common one plus noise: r / (1 + r) for the noise scale r over the batch.
TEST(GradientNoise, IsThatOfTheNoiseScale) {
  constexpr int kBatches = 64, kElements = 500;
  constexpr double kSignal = 0.1, kDeviation = 1.0;
  double mean_noise = 0.0;
  constexpr int kTrials = 40;
  for (uint32_t trial = 0; trial < kTrials; ++trial) {
    std::vector<double> sum(kElements);
    double squares = 0.0;
    for (uint32_t batch = 0; batch < kBatches; ++batch) {
      for (uint32_t element = 0; element < kElements; ++element) {
        const PhiloxCounter words = philox(77, {trial, batch, element, 0});
        const double normal = static_cast<double>(normal_pair(words[0], words[1])[0]);
        const double own = (kSignal + kDeviation * normal) / kBatches;
        sum[element] += own;
        squares += own * own;
      }
    }
    double norm = 0.0;
    for (const double value : sum) norm += value * value;
    mean_noise += gradient_noise_of(squares, norm, kBatches) / kTrials;
  }
  const double r = kDeviation * kDeviation / kBatches / (kSignal * kSignal);
  EXPECT_NEAR(mean_noise, r / (1.0 + r), 0.01);
}

TEST(Roughness, IsTheDeviationWithoutTheTrend) {
  EXPECT_DOUBLE_EQ(roughness_of(std::vector<double>{1.0, 3.0, 1.0}), std::sqrt(8.0 / 4.0));
  std::vector<double> falling;
  for (uint32_t i = 0; i < 4000; ++i) {
    const PhiloxCounter words = philox(78, {i, 0, 0, 0});
    falling.push_back(5.0 - 1e-3 * i + 0.05 * static_cast<double>(normal_pair(words[0], words[1])[0]));
  }
  EXPECT_NEAR(roughness_of(falling), 0.05, 0.002) << "the losses themselves spread over 4 nats";
}

// L(w) = a w^2 / 2 and gradient descent: D = -r g, g = a w, so that D.HD / -g.D = r a.
TEST(Curvature, OfGradientDescentOnAQuadraticIsTheRateTimesTheEigenvalue) {
  const double w = 3.0;
  for (const double a : {0.1, 1.0, 7.0}) {
    for (const double rate : {0.01, 0.2, 1.0, 2.5}) {
      const double g = a * w, after = w - rate * g;
      EXPECT_NEAR(curvature_of(a * w * w / 2, a * after * after / 2, g * (after - w)), rate * a, 1e-12);
    }
  }
  EXPECT_TRUE(std::isnan(curvature_of(1.0, 0.9, 0.1)));
  EXPECT_TRUE(std::isnan(curvature_of(1.0, kNoNumber, -0.1)));
  EXPECT_TRUE(std::isnan(curvature_of(1.0, 0.9, kNoNumber)));
}

}  // namespace
}  // namespace mantissa
