#include "tools/run/guard/outliers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/kernels/reduction/update_decision.h"

namespace mantissa {
namespace {

StopRulesConfig rules(int window, double loss_z, double norm_z, SpikeAction action = SpikeAction::kSkip) {
  return {.action = action, .window = window, .loss_z = loss_z, .grad_norm_z = norm_z};
}

// By the definition, from sorted values.
double sorted_median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

double expected_limit(const std::vector<double>& values, double z) {
  const double median = sorted_median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::fabs(value - median));
  return median + z * std::max(1.4826 * sorted_median(distances), 1e-3 * std::fabs(median));
}

TEST(SpikeDetector, LimitsAreThoseOfASeparateComputation) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> heavy(0.0, 1.0);
  for (const int window : {8, 9, 31}) {
    SpikeDetector detector(rules(window, 6.0, 11.0));
    std::vector<double> losses, norms;
    for (int64_t step = 0; step < 100; ++step) {
      // The step before is not known yet where a device runs ahead.
      const size_t known = losses.empty() ? 0 : losses.size() - 1;
      const auto first = static_cast<ptrdiff_t>(known > static_cast<size_t>(window) ? known - window : 0);
      const auto last = static_cast<ptrdiff_t>(known);
      const SpikeLimits limits = detector.limits(step);
      if (2 * known < static_cast<size_t>(window)) {
        EXPECT_EQ(limits.loss, SpikeLimits::kNone) << step;
        EXPECT_EQ(limits.norm, SpikeLimits::kNone) << step;
      } else {
        const auto part = [&](const std::vector<double>& all) {
          return std::vector<double>(all.begin() + first, all.begin() + last);
        };
        EXPECT_DOUBLE_EQ(limits.loss, expected_limit(part(losses), 6.0)) << step;
        EXPECT_DOUBLE_EQ(limits.norm, expected_limit(part(norms), 11.0)) << step;
        EXPECT_NEAR(limits.losses.z(limits.loss), 6.0, 1e-9);
      }
      losses.push_back(heavy(random));
      norms.push_back(heavy(random));
      detector.record({.step = step, .loss = losses.back(), .norm = norms.back()});
    }
  }
}

// The scale of normal values is their standard deviation.
TEST(SpikeDetector, TheScaleIsThatOfANormalDistribution) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(5.0, 0.25);
  std::vector<double> values(20001);
  for (double& value : values) value = normal(random);
  const Spread spread = spread_of(values);
  EXPECT_NEAR(spread.median, 5.0, 0.01);
  EXPECT_NEAR(spread.scale, 0.25, 0.01);
  // A tenth of the values, however large, moves it little.
  for (size_t i = 0; i < 2000; ++i) values[i] = 1e9;
  EXPECT_LT(spread_of(values).scale, 0.32);
  EXPECT_LT(spread_of(values).median, 5.05);
}

TEST(SpikeDetector, EqualValuesLeaveRoom) {
  const Spread flat = spread_of(std::vector<double>(10, 4.0));
  EXPECT_DOUBLE_EQ(flat.median, 4.0);
  EXPECT_DOUBLE_EQ(flat.scale, 0.004);
  EXPECT_GT(spread_of(std::vector<double>(10, 0.0)).scale, 0.0);
  EXPECT_TRUE(std::isfinite(spread_of(std::vector<double>(10, 0.0)).z(1.0)));
  EXPECT_DOUBLE_EQ(spread_of({-4.0}).scale, 0.004);
}

// The step before may be under way, or may have been skipped: the limits are the same.
TEST(SpikeDetector, TheStepBeforeDoesNotCount) {
  SpikeDetector waits(rules(8, 5.0, 5.0)), ahead(rules(8, 5.0, 5.0));
  for (int64_t step = 0; step < 20; ++step) {
    const SpikeDetector::Sample sample{.step = step, .loss = std::sin(static_cast<double>(step)), .norm = 1.0};
    waits.record(sample);
    EXPECT_EQ(waits.limits(step + 1).loss, ahead.limits(step + 1).loss) << step;
    ahead.record(sample);
  }
  const double before = waits.limits(21).loss;
  EXPECT_EQ(waits.limits(22).loss, before) << "step 20 was skipped: nothing was recorded";
}

TEST(SpikeDetector, AnActionOfNoneAndAZOfZeroSetNoLimit) {
  SpikeDetector none(rules(8, 5.0, 5.0, SpikeAction::kNone)), loss_only(rules(8, 5.0, 0.0));
  for (int64_t step = 0; step < 20; ++step) {
    none.record({.step = step, .loss = 1.0, .norm = 1.0});
    loss_only.record({.step = step, .loss = 1.0, .norm = 1.0});
  }
  EXPECT_EQ(none.limits(21).loss, SpikeLimits::kNone);
  EXPECT_TRUE(none.state().empty());
  EXPECT_EQ(loss_only.limits(21).norm, SpikeLimits::kNone);
  EXPECT_LT(loss_only.limits(21).loss, 1.01);
  EXPECT_FALSE(none.holds_back());
  EXPECT_FALSE(SpikeDetector(rules(8, 5.0, 5.0, SpikeAction::kWarn)).holds_back());
  for (const SpikeAction action : {SpikeAction::kSkip, SpikeAction::kRollback, SpikeAction::kStop}) {
    EXPECT_TRUE(SpikeDetector(rules(8, 5.0, 5.0, action)).holds_back());
  }
}

TEST(SpikeDetector, ValuesThatAreNotFiniteStayOutAndAreSpikes) {
  SpikeDetector detector(rules(8, 5.0, 5.0));
  for (int64_t step = 0; step < 20; ++step) detector.record({.step = step, .loss = 1.0, .norm = 1.0});
  const auto before = detector.state();
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    detector.record({.step = 20, .loss = bad, .norm = 1.0});
    detector.record({.step = 20, .loss = 1.0, .norm = bad});
  }
  EXPECT_EQ(detector.state(), before);
  const UpdatePlan plan{.loss_limit = 2.0, .norm_limit = 3.0};
  EXPECT_TRUE(is_spike(NAN, 1.0, plan));
  EXPECT_TRUE(is_spike(1.0, NAN, plan));
  EXPECT_TRUE(is_spike(HUGE_VAL, 1.0, plan));
  EXPECT_TRUE(is_spike(2.1, 1.0, plan));
  EXPECT_TRUE(is_spike(1.0, 3.1, plan));
  EXPECT_FALSE(is_spike(2.0, 3.0, plan));
  EXPECT_FALSE(is_spike(1e300, 1e300, UpdatePlan()));
}

TEST(SpikeDetector, GoesThroughItsState) {
  SpikeDetector detector(rules(8, 5.0, 5.0)), shorter(rules(8, 5.0, 5.0));
  for (int64_t step = 0; step < 30; ++step) {
    detector.record({.step = step, .loss = std::cos(static_cast<double>(step)), .norm = static_cast<double>(step)});
  }
  shorter.restore(detector.state());
  EXPECT_EQ(shorter.state(), detector.state());
  EXPECT_EQ(shorter.limits(30).loss, detector.limits(30).loss);
  EXPECT_EQ(shorter.limits(31).norm, detector.limits(31).norm);
  EXPECT_EQ(detector.state().size(), 9u);  // the window, and the step after it
}

TEST(SpikeDetector, DescribesEachValueAboveItsLimit) {
  SpikeLimits limits{.loss = 5.0, .norm = 2.0};
  limits.losses = {.median = 4.0, .scale = 0.1, .count = 128};
  limits.norms = {.median = 1.0, .scale = 0.05, .count = 128};
  EXPECT_EQ(describe(limits, 6.0, 1.5), "the loss 6.0000 is 20.0 deviations above 4.0000, the median of 128 steps");
  EXPECT_EQ(
      describe(limits, 6.0, 3.0),
      "the loss 6.0000 is 20.0 deviations above 4.0000, the median of 128 steps, the gradient norm 3.0000 is 40.0 "
      "deviations above 1.0000, the median of 128 steps");
}

}  // namespace
}  // namespace mantissa
