// Stochastic rounding as a regulariser. The mean loss at weights with noise r of mean 0 and variance s^2 is
//   E[f(w + r)] = f(w) + 1/2 s^2 tr H(w) + ...,
// exact for a quadratic (Bishop, "Training with Noise is Equivalent to Tikhonov Regularization", Neural Computation
// 7(1), 1995). Stochastic rounding has s^2 = delta^2 p (1 - p), on average delta^2 / 6 between two numbers of the
// format. Rounding to nearest has delta^2 / 12.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <string>

#include "core/kernels/optimizer/args.h"
#include "core/tensor/philox.h"
#include "tests/experiments/weight_rounding.h"

namespace mantissa {
namespace {

using namespace testing;

// f(w + r) - f(w) at the minimum of 1/2 sum lambda (w - w*)^2, for minima throughout [1.25, 1.75).
TEST(ImplicitRegularisation, OfAQuadraticIsHalfTheVarianceTimesTheTrace) {
  constexpr int kSamples = 20000;
  constexpr double kLambdas[] = {0.1, 1, 3, 10};
  for (const Format format : kWeightFormats) {
    for (const WeightRounding rounding : {WeightRounding::kNearest, WeightRounding::kStochastic}) {
      double difference = 0, trace = 0;
      for (uint32_t l = 0; l < std::size(kLambdas); ++l) {
        trace += kLambdas[l];
        for (uint32_t i = 0; i < kSamples; ++i) {
          const PhiloxCounter words = philox(3, {i, l, 0, 0});
          const float w = 1.25f + 0.5f * uniform01(words[0]);
          const double r = static_cast<double>(round_weight(format, rounding, w, words[1])) - w;
          difference += 0.5 * kLambdas[l] * r * r / kSamples;
        }
      }
      const double part = rounding == WeightRounding::kNearest ? 12 : 6;
      const double predicted = 0.5 * spacing(format) * spacing(format) / part * trace;
      std::printf("%-5s %-10s increase %.4e predicted %.4e\n", std::string(info(format).name).c_str(),
                  rounding == WeightRounding::kNearest ? "nearest" : "stochastic", difference, predicted);
      EXPECT_NEAR(difference / predicted, 1, 0.03);
    }
  }
}

// Two basins, in bf16 steps from 1.5: one sharp and deep, the other flat and less deep.
constexpr double kSharpPlace = -4.5, kSharpDepth = 1.4, kSharpWidth = 1;
constexpr double kFlatPlace = 4, kFlatDepth = 0.6, kFlatWidth = 3;
constexpr double kBowl = 0.01;
constexpr double kBarrier = -1.7;  // where the loss between the basins peaks

double basin(double x, double place, double depth, double width) {
  return -depth * std::exp(-0.5 * (x - place) * (x - place) / (width * width));
}
double loss(double x) {  // with a bowl around both that keeps weights from leaving
  return basin(x, kSharpPlace, kSharpDepth, kSharpWidth) + basin(x, kFlatPlace, kFlatDepth, kFlatWidth) +
         0.5 * kBowl * x * x;
}
double slope(double x) {
  return -(x - kSharpPlace) / (kSharpWidth * kSharpWidth) * basin(x, kSharpPlace, kSharpDepth, kSharpWidth) -
         (x - kFlatPlace) / (kFlatWidth * kFlatWidth) * basin(x, kFlatPlace, kFlatDepth, kFlatWidth) + kBowl * x;
}
double curvature(double x) { return (slope(x + 1e-4) - slope(x - 1e-4)) / 2e-4; }

// The log odds of the flat basin. For small lr, SGD with noise of variance 2 T / lr visits x with density exp(-F(x) /
// T), up to a constant (Mandt, Hoffman, Blei, "Stochastic Gradient Descent as Approximate Bayesian Inference", JMLR 18,
// 2017). F' is the mean of the given gradient.
double log_odds(double temperature, const std::function<double(double)>& mean_slope) {
  constexpr double kStep = 1e-3;
  double potential = 0, sharp = 0, flat = 0;
  for (double x = -40; x < 40; x += kStep) {
    (x < kBarrier ? sharp : flat) += std::exp(-potential / temperature);
    potential += kStep * mean_slope(x + 0.5 * kStep);
  }
  return std::log(flat / sharp);
}

// The gradient is evaluated at the rounded master, as with optimizer.weight_rounding.
double measured_log_odds(double temperature, const std::function<double(double, uint32_t)>& slope_at) {
  constexpr double kLr = 0.06;
  constexpr uint32_t kWalkers = 24, kSteps = 1 << 19;
  const double noise = std::sqrt(2 * temperature * kLr);
  int64_t flat = 0, sharp = 0;
  for (uint32_t walker = 0; walker < kWalkers; ++walker) {
    double x = walker % 2 == 0 ? kSharpPlace : kFlatPlace;
    for (uint32_t step = 0; step < kSteps; ++step) {
      const PhiloxCounter words = philox(5, {step, walker, 0, 0});
      const auto normal = normal_pair(words[0], words[1]);
      for (int half = 0; half < 2; ++half) {
        x += noise * normal[half] - kLr * slope_at(x, words[2 + half]);
        ++(x < kBarrier ? sharp : flat);
      }
    }
  }
  return std::log(static_cast<double>(flat) / static_cast<double>(sharp));
}

double rounded_place(double x, WeightRounding rounding, uint32_t word) {
  const double delta = spacing(Format::kBF16);
  return (round_weight(Format::kBF16, rounding, static_cast<float>(1.5 + x * delta), word) - 1.5) / delta;
}

TEST(ImplicitRegularisation, TakesSgdToTheFlatterOfTwoMinima) {
  constexpr double kTemperature = 0.25;
  // Between two numbers of the format, the mean slope is the linear interpolation of their slopes.
  const auto stochastic_slope = [](double x) {
    const double p = x - std::floor(x);
    return (1 - p) * slope(std::floor(x)) + p * slope(std::floor(x) + 1);
  };
  const auto second_order_slope = [](double x) {
    const auto smoothed = [](double y) { return loss(y) + 0.5 / 6 * curvature(y); };
    return (smoothed(x + 1e-3) - smoothed(x - 1e-3)) / 2e-3;
  };
  const double exact = measured_log_odds(kTemperature, [](double x, uint32_t) { return slope(x); });
  const double rounded = measured_log_odds(
      kTemperature, [](double x, uint32_t word) { return slope(rounded_place(x, WeightRounding::kStochastic, word)); });
  const double predicted_exact = log_odds(kTemperature, slope);
  const double predicted = log_odds(kTemperature, stochastic_slope);
  const double second_order = log_odds(kTemperature, second_order_slope);
  std::printf("log odds of the flat basin: fp32 %.3f (%.3f), bf16 stochastic %.3f (%.3f), by 1/2 s^2 f'' %.3f\n", exact,
              predicted_exact, rounded, predicted, second_order);
  EXPECT_NEAR(exact, predicted_exact, 0.15);
  EXPECT_NEAR(rounded, predicted, 0.15);
  EXPECT_NEAR(second_order - predicted_exact, predicted - predicted_exact, 0.5 * (predicted - predicted_exact));
  EXPECT_GT(rounded - exact, 0.2);
}

// Exception: no master and no other noise. A step below delta ends at one of the two neighbouring numbers. The weight
// moves to the next one downhill or stays, and never leaves the sharp basin.
TEST(ImplicitRegularisation, OfRoundedWeightsAloneLeavesNoBasin) {
  constexpr double kLr = 0.5;  // lr |slope| < 1 everywhere
  double x = -4;
  for (uint32_t step = 0; step < 200000; ++step) {
    x = rounded_place(x - kLr * slope(x), WeightRounding::kStochastic, philox(6, {step, 0, 0, 0})[0]);
    ASSERT_LE(std::abs(x - kSharpPlace), 1);
  }
}

}  // namespace
}  // namespace mantissa
