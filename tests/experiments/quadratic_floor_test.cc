// "SGD on a quadratic with rounding": the remaining loss, over four formats and both roundings.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <string>

#include "tests/experiments/quadratic_descent.h"

namespace mantissa {
namespace {

using namespace testing;

// The allowed ratio of measured and predicted floors, either way. The prediction assumes normal steps. Without gradient
// noise steps consist of rounding only, and small rates give V = delta^2 / (2 pi) instead of delta^2 / 6, the value for
// an unbiased weight on the format's numbers. That is 1.05 times as much and the largest difference. The rest covers
// the finite number of steps (about 2 %).
constexpr double kFactor = 1.1;

constexpr int kCoordinates = 32;  // for each lambda, with targets spread over a step of the format

double target_of(Format format, int coordinate) {
  return 1.5 + spacing(format) * ((coordinate + 0.5) / kCoordinates - 0.5);
}

struct Floor {
  double measured = 0;
  double predicted = 0;
  double ratio() const { return measured / predicted; }
};

// Mean of f over the second half of the steps, and 1/2 sum lambda V.
Floor floor_of(Format format, WeightRounding rounding, double sigma, std::initializer_list<double> lambdas, int steps) {
  Floor floor;
  for (const double lambda : lambdas) {
    for (int i = 0; i < kCoordinates; ++i) {
      const double target = target_of(format, i);
      const Descent descent{.format = format,
                            .rounding = rounding,
                            .lambda = lambda,
                            .sigma = sigma,
                            .start = target,
                            .target = target,
                            .coordinate = static_cast<uint32_t>(i)};
      double squares = 0;
      descend(descent, steps, [&](int step, double e) { squares += step < steps / 2 ? 0 : e * e; });
      floor.measured += 0.5 * lambda * squares / (steps - steps / 2);
      floor.predicted += 0.5 * lambda * stationary_variance(descent);
    }
  }
  return floor;
}

void print(Format format, const char* rounding, double sigma, const Floor& floor) {
  std::printf("%-5s %-10s sigma %-6g floor %.4e predicted %.4e ratio %.3f\n", std::string(info(format).name).c_str(),
              rounding, sigma, floor.measured, floor.predicted, floor.ratio());
}

// From rounding only (sigma = 0) to gradient noise only (fp16, sigma = 0.5).
TEST(QuadraticFloor, OfStochasticRounding) {
  for (const Format format : kWeightFormats) {
    for (const double sigma : {0.0, 0.005, 0.05, 0.5}) {
      const Floor floor = floor_of(format, WeightRounding::kStochastic, sigma, {0.5, 1, 4}, 6000);
      print(format, "stochastic", sigma, floor);
      EXPECT_LT(floor.ratio(), kFactor);
      EXPECT_GT(floor.ratio(), 1 / kFactor);
    }
  }
}

// Without gradient noise V does not fall with the rate: delta^2 / (2 pi), or delta^2 / 6 for weights on the format's
// numbers. With fp32 masters it would be 0.
TEST(QuadraticFloor, OfStochasticRoundingDoesNotFallWithTheRate) {
  for (const Format format : {Format::kBF16, Format::kE4M3}) {
    for (const double rate : {0.2, 0.05, 0.0125}) {
      const double lambda = rate / 0.1;
      const Floor floor = floor_of(format, WeightRounding::kStochastic, 0, {lambda}, 20000);
      const double variance = floor.measured / (0.5 * lambda * kCoordinates) / std::pow(spacing(format), 2);
      std::printf("%-5s lr lambda %-6g V %.4f delta^2\n", std::string(info(format).name).c_str(), rate, variance);
      EXPECT_NEAR(variance, 1.0 / 6.0, 0.1 / 6.0);
    }
  }
}

// If noise spreads a step over several of the format's numbers, rounding to nearest acts like random noise with half
// the variance of stochastic rounding.
TEST(QuadraticFloor, OfRoundingToNearestUnderNoise) {
  for (const Format format : kWeightFormats) {
    for (const double spread : {0.5, 0.75}) {
      const double sigma = spread * spacing(format) / 0.1;
      const Floor floor = floor_of(format, WeightRounding::kNearest, sigma, {5, 10}, 10000);
      print(format, "nearest", sigma, floor);
      EXPECT_LT(floor.ratio(), kFactor);
      EXPECT_GT(floor.ratio(), 1 / kFactor);
    }
  }
}

// Without noise a weight stops once a step is below delta / 2: at distance b = delta / (2 lr lambda) from the minimum,
// so f is at most 1/2 sum lambda b^2. The last step from beyond b is one delta, so weights stop between b - delta and
// b. Over targets they do so uniformly: E[e^2] = (b^3 - (b - delta)^3) / (3 delta).
TEST(QuadraticFloor, OfRoundingToNearestWithoutNoise) {
  for (const Format format : kWeightFormats) {
    const double delta = spacing(format);
    Floor floor;
    double bound = 0;
    for (const double lambda : {2.5, 3.0, 4.0}) {
      const double b = delta / (2 * 0.1 * lambda), a = b - delta;
      for (int i = 0; i < kCoordinates; ++i) {
        const Descent descent{.format = format, .lambda = lambda, .start = 1, .target = target_of(format, i) + 0.3};
        double last = 0;
        descend(descent, 3000, [&](int, double e) { last = e; });
        EXPECT_LE(std::abs(last), b * (1 + 1e-6));
        floor.measured += 0.5 * lambda * last * last;
        floor.predicted += 0.5 * lambda * (b * b * b - a * a * a) / (3 * delta);
        bound += 0.5 * lambda * b * b;
      }
    }
    print(format, "nearest", 0, floor);
    EXPECT_LT(floor.ratio(), kFactor);
    EXPECT_GT(floor.ratio(), 1 / kFactor);
    EXPECT_LT(floor.measured, bound);
  }
}

}  // namespace
}  // namespace mantissa
