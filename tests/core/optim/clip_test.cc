#include "core/optim/clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa {
namespace {

using Kind = ClipOptions::Kind;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Clip, FixedIsTheFormulaOfPyTorch) {
  const GradientClipper clipper({.kind = Kind::kFixed, .max_norm = 2.0});
  EXPECT_EQ(clip_factor(0.0, clipper.threshold()), 1.0);
  EXPECT_EQ(clip_factor(1.5, clipper.threshold()), 1.0);
  EXPECT_EQ(clip_factor(2.0, clipper.threshold()), 2.0 / (2.0 + 1e-6));  // slightly below 1, as in PyTorch
  EXPECT_EQ(clip_factor(8.0, clipper.threshold()), 2.0 / (8.0 + 1e-6));  // by the norm, not its square
  EXPECT_EQ(clipper.threshold(), 2.0);
}

TEST(Clip, OffNeverClips) {
  const GradientClipper clipper({.kind = Kind::kOff});
  EXPECT_EQ(clip_factor(1e300, clipper.threshold()), 1.0);
  EXPECT_EQ(clipper.threshold(), kInfinity);
}

TEST(Clip, ANormThatIsNotFiniteIsNoNorm) {
  GradientClipper clipper({.kind = Kind::kFixed});
  for (const double norm : {kInfinity, std::nan(""), -1.0}) {
    EXPECT_THROW(clipper.record(norm), ContractError);
  }
}

TEST(Clip, AdaptiveWarmsUpThenFollowsThePercentile) {
  GradientClipper clipper({.kind = Kind::kAdaptive, .max_norm = 0.0, .percentile = 50.0, .window = 4, .warmup = 3});
  clipper.record(4.0);
  clipper.record(1.0);
  EXPECT_EQ(clipper.threshold(), kInfinity);  // two of three values so far
  clipper.record(3.0);
  EXPECT_EQ(clipper.threshold(), 3.0);  // median of 1 3 4
  clipper.record(2.0);
  EXPECT_EQ(clipper.threshold(), 2.5);  // between the middle two of 1 2 3 4
  clipper.record(10.0);
  EXPECT_EQ(clipper.threshold(), 2.5);  // 4 has left the window: 1 2 3 10
  EXPECT_EQ(clip_factor(5.0, clipper.threshold()), 2.5 / (5.0 + 1e-6));
}

TEST(Clip, AdaptivePercentilesInterpolateLikeNumpy) {
  GradientClipper low({.kind = Kind::kAdaptive, .max_norm = 0.0, .percentile = 0.0, .window = 5, .warmup = 1});
  GradientClipper high({.kind = Kind::kAdaptive, .max_norm = 0.0, .percentile = 100.0, .window = 5, .warmup = 1});
  GradientClipper ninety({.kind = Kind::kAdaptive, .max_norm = 0.0, .percentile = 90.0, .window = 5, .warmup = 1});
  for (const double norm : {5.0, 1.0, 4.0, 2.0, 3.0}) {
    for (GradientClipper* clipper : {&low, &high, &ninety}) clipper->record(norm);
  }
  EXPECT_EQ(low.threshold(), 1.0);
  EXPECT_EQ(high.threshold(), 5.0);
  EXPECT_NEAR(ninety.threshold(), 4.6, 1e-15);  // numpy.percentile([1, 2, 3, 4, 5], 90); one rounding of 3.6
}

TEST(Clip, AdaptiveUsesMaxNormWhileWarmingUp) {
  GradientClipper clipper({.kind = Kind::kAdaptive, .max_norm = 1.5, .percentile = 100.0, .window = 2, .warmup = 2});
  EXPECT_EQ(clipper.threshold(), 1.5);
  clipper.record(7.0);
  EXPECT_EQ(clipper.threshold(), 1.5);
  clipper.record(8.0);
  EXPECT_EQ(clipper.threshold(), 8.0);
}

TEST(Clip, StateRestoresTheSameThresholds) {
  const ClipOptions options{.kind = Kind::kAdaptive, .max_norm = 0.0, .percentile = 75.0, .window = 3, .warmup = 2};
  GradientClipper clipper(options), other(options);
  for (const double norm : {9.0, 1.0, 2.0, 5.0}) clipper.record(norm);
  EXPECT_EQ(clipper.state(), (std::vector<double>{1.0, 2.0, 5.0}));
  other.record(100.0);
  other.restore(clipper.state());
  EXPECT_EQ(other.threshold(), clipper.threshold());
  clipper.record(3.0);
  other.record(3.0);
  EXPECT_EQ(other.state(), clipper.state());
  EXPECT_EQ(other.threshold(), clipper.threshold());

  GradientClipper narrower({.kind = Kind::kAdaptive, .max_norm = 0.0, .window = 2, .warmup = 2});
  narrower.restore({1.0, 2.0, 5.0});
  EXPECT_EQ(narrower.state(), (std::vector<double>{2.0, 5.0}));
}

TEST(Clip, RefusesImpossibleOptions) {
  EXPECT_THROW(GradientClipper({.kind = Kind::kFixed, .max_norm = 0.0}), ConfigError);
  EXPECT_THROW(GradientClipper({.kind = Kind::kFixed, .max_norm = std::nan("")}), ConfigError);
  EXPECT_THROW(GradientClipper({.kind = Kind::kAdaptive, .percentile = 101.0}), ConfigError);
  EXPECT_THROW(GradientClipper({.kind = Kind::kAdaptive, .window = 10, .warmup = 11}), ConfigError);
  EXPECT_THROW(GradientClipper({.kind = Kind::kAdaptive, .warmup = 0}), ConfigError);
}

}  // namespace
}  // namespace mantissa
