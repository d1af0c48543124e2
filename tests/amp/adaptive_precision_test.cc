#include "amp/adaptive_precision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Options for three levels that start on the lowest. Decisions may follow every step, switches any distance apart.
AdaptiveOptions watching(AdaptiveOptions options) {
  options.start = 2;
  options.min_steps = 1;
  options.stable_steps = 0;
  options.window = 10;
  options.warmup = 4;
  return options;
}

// Applies `count` steps with this loss and norm, beginning with `step`.
void calm(AdaptivePrecision& adaptive, int64_t step, int count, double loss = 2.0, double norm = 1.0) {
  for (int i = 0; i < count; ++i) adaptive.applied(step + i, loss, norm);
}

// The level after one decision.
int level_after(AdaptivePrecision& adaptive, int64_t step) {
  adaptive.decide(step);
  return adaptive.level();
}

// The level after one decision about a step with this loss and norm.
int level_after(AdaptivePrecision& adaptive, int64_t step, double loss, double norm = 1.0) {
  adaptive.applied(step, loss, norm);
  return level_after(adaptive, step);
}

TEST(AdaptivePrecision, ALossFarAboveItsMedianGoesUpByALevel) {
  AdaptivePrecision adaptive(watching({.loss_rise = 0.5}), 3);
  calm(adaptive, 1, 9);
  EXPECT_EQ(level_after(adaptive, 10, 2.49), 2);
  adaptive.applied(11, 2.6, 1.0);
  const auto change = adaptive.decide(11);
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->from, 2);
  EXPECT_EQ(change->to, 1);
  ASSERT_EQ(change->causes.size(), 1u);
  EXPECT_EQ(change->causes[0].signal, "loss");
  EXPECT_EQ(change->causes[0].step, 11);
  EXPECT_NEAR(change->causes[0].value, 0.6, 1e-12);
  EXPECT_EQ(change->causes[0].threshold, 0.5);
  EXPECT_EQ(describe(change->causes[0]), "the loss was 0.6 nats above its recent median (step 11; threshold 0.5)");
}

TEST(AdaptivePrecision, WhatIsNotFiniteDoesNotWaitForTheDistanceOfSwitches) {
  AdaptiveOptions options = watching({.loss_rise = 0.5});
  options.min_steps = 50;
  AdaptivePrecision adaptive(options, 3);
  calm(adaptive, 1, 9);
  EXPECT_EQ(level_after(adaptive, 10, 9.0), 1);
  calm(adaptive, 11, 9);
  EXPECT_EQ(level_after(adaptive, 20, 9.0), 1) << "too near to the last switch";
  adaptive.skipped(21, kNan, kNan);
  EXPECT_EQ(level_after(adaptive, 21), 0) << "although a finite loss was bad before";

  options.loss_rise = 0.0;
  options.skipped_share = 1.0 / options.window;
  AdaptivePrecision one_is_enough(options, 3);
  for (const int64_t step : {10, 11}) {
    one_is_enough.skipped(step, 2.0, kNan);
    EXPECT_EQ(level_after(one_is_enough, step), 11 - step);
  }
}

TEST(AdaptivePrecision, ALadderThatBeginsLateHasSeenNothingOfTheStepsBefore) {
  AdaptiveOptions options = watching({.loss_rise = 0.5});
  options.start = 0;
  options.stable_steps = 40;
  AdaptivePrecision adaptive(options, 3, 100);
  calm(adaptive, 101, 39);
  EXPECT_EQ(level_after(adaptive, 139), 0);
  EXPECT_EQ(level_after(adaptive, 140, 2.0), 1);
}

TEST(AdaptivePrecision, LossesAndNormsAreComparedWhenEnoughAreKnown) {
  AdaptivePrecision adaptive(watching({.loss_rise = 0.5, .norm_factor = 2.0}), 3);
  calm(adaptive, 1, 3);
  EXPECT_EQ(level_after(adaptive, 4, 9.0, 9.0), 2) << "too few values so far to compare the fourth with";
  EXPECT_EQ(level_after(adaptive, 5, 9.0), 1);
}

TEST(AdaptivePrecision, ANormFarAboveTheQuantileIsBad) {
  AdaptivePrecision adaptive(watching({.norm_factor = 3.0, .norm_quantile = 0.5}), 3);
  for (int step = 1; step <= 9; ++step) adaptive.applied(step, 2.0, step);  // median 5
  EXPECT_EQ(level_after(adaptive, 10, 2.0, 14.9), 2);
  EXPECT_EQ(level_after(adaptive, 11, 2.0, 18.1), 1) << "the nearest-rank median of 1 ... 9 and 14.9 is 5";
}

TEST(AdaptivePrecision, SkippedStepsAreCountedInTheWindow) {
  AdaptivePrecision adaptive(watching({.skipped_share = 0.3}), 3);
  adaptive.skipped(1, 2.0, kInf);
  adaptive.skipped(2, 2.0, kInf);
  adaptive.skipped(11, 2.0, kInf);  // the first has left the window
  EXPECT_EQ(level_after(adaptive, 11), 2);
  adaptive.skipped(11, 2.0, kInf);
  EXPECT_EQ(level_after(adaptive, 11), 1);
}

TEST(AdaptivePrecision, UnderflowCurvatureAndNoiseAreComparedAsTheyAre) {
  const auto expect_bad_from = [](double threshold, const AdaptiveOptions& options, auto measured) {
    AdaptivePrecision adaptive(watching(options), 3);
    (adaptive.*measured)(1, 0.99 * threshold);
    EXPECT_EQ(level_after(adaptive, 1), 2);
    (adaptive.*measured)(2, threshold);
    EXPECT_EQ(level_after(adaptive, 2), 1);
    (adaptive.*measured)(3, kNan);
    EXPECT_EQ(level_after(adaptive, 3), 0);
  };
  expect_bad_from(0.4, {.underflow_share = 0.4}, &AdaptivePrecision::underflowed);
  expect_bad_from(2.0, {.curvature = 2.0}, &AdaptivePrecision::curved);
  expect_bad_from(0.9, {.gradient_noise = 0.9}, &AdaptivePrecision::noisy);
}

// Losses that jump by 0.2 from step to step, then by 0.8, though their median stays. The last three changes are
// compared with the five before them: 0.2, 0.5 and 0.8 are 2.8 times as large, 0.5, 0.8 and 0.8 are 3.6 times as large.
TEST(AdaptivePrecision, LossesThatGetRoughAreBad) {
  const auto loss = [](int64_t step, double jump) { return 3.0 + (step % 2 == 0 ? jump : -jump) / 2; };
  AdaptivePrecision adaptive(watching({.loss_roughness = 3.0}), 3), off(watching({.curvature = 1.0}), 3);
  int64_t step = 0;
  for (; step < 12; ++step) {
    EXPECT_EQ(level_after(adaptive, step, loss(step, step < 10 ? 0.2 : 0.8)), 2) << step;
  }
  adaptive.applied(step, loss(step, 0.8), 1.0);
  const auto change = adaptive.decide(step);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->to, 1);
  EXPECT_EQ(change->causes[0].signal, "loss roughness");
  EXPECT_NEAR(change->causes[0].value, std::sqrt((0.25 + 0.64 + 0.64) / 3) / 0.2, 1e-9);
  EXPECT_EQ(describe(change->causes[0]),
            "the last losses were 3.571 times as rough as the window (step 12; threshold 3)");
  for (step = 0; step < 60; ++step) off.applied(step, loss(step, step < 30 ? 0.2 : 9.0), 1.0);
  EXPECT_EQ(level_after(off, step), 2);
}

TEST(AdaptivePrecision, AnEarlierStateGoesOnOnTheLevelOfNow) {
  AdaptiveOptions options = watching({.loss_rise = 0.5, .stalled_evaluations = 2});
  AdaptivePrecision then(options, 3);
  calm(then, 1, 9);
  then.evaluated(9, 2.0);
  AdaptivePrecision now = then;
  EXPECT_TRUE(now.is_calm_since(0));
  now.evaluated(15, 1.5);
  now.applied(20, 3.0, 1.0);
  EXPECT_FALSE(now.is_calm_since(19));
  EXPECT_TRUE(now.is_calm_since(20));
  EXPECT_EQ(level_after(now, 20), 1);
  then.go_on_as(now, 9);
  EXPECT_EQ(then.level(), 1);
  EXPECT_EQ(then.state().switches, 1);
  EXPECT_TRUE(then.state().raised);
  EXPECT_EQ(then.state().changed_at, 9);
  EXPECT_EQ(then.state().best_validation, 2.0) << "the better one was measured after it";
  EXPECT_TRUE(then.state().losses.empty());
  EXPECT_TRUE(then.is_calm_since(9));
}

// Between evaluations nothing is known: checkpoints are as doubtful as the last one.
TEST(AdaptivePrecision, ASeldomMeasuredSignalIsUneasyUntilItIsMeasuredAgain) {
  AdaptivePrecision adaptive(watching({.loss_rise = 0.5, .stalled_evaluations = 2}), 3);
  adaptive.evaluated(10, 3.0);
  adaptive.evaluated(20, 3.1);
  calm(adaptive, 21, 29);
  EXPECT_FALSE(adaptive.is_calm_since(25));
  adaptive.evaluated(30, 2.9);
  EXPECT_TRUE(adaptive.is_calm_since(25));
  EXPECT_FALSE(adaptive.is_calm_since(19)) << "it was uneasy after 20 steps";
  adaptive.evaluated(40, 3.1);
  EXPECT_FALSE(AdaptivePrecision(adaptive.options(), 3, adaptive.state()).is_calm_since(45)) << "part of the state";
  EXPECT_TRUE(AdaptivePrecision(watching({.loss_rise = 0.5}), 3, adaptive.state()).is_calm_since(45)) << "turned off";
  adaptive.evaluated(50, 3.1);
  EXPECT_EQ(level_after(adaptive, 50), 1);
  EXPECT_TRUE(adaptive.is_calm_since(50)) << "a new level begins without doubt";
}

TEST(AdaptivePrecision, ValidationThatDoesNotImproveEnoughIsBad) {
  AdaptivePrecision adaptive(watching({.stalled_evaluations = 2, .min_improvement = 0.1}), 3);
  adaptive.evaluated(10, 3.0);
  adaptive.evaluated(20, 2.95);  // improves by less than 0.1
  EXPECT_EQ(level_after(adaptive, 20), 2);
  adaptive.evaluated(30, 2.85);  // improves on 3.0 by more than 0.1
  adaptive.evaluated(40, 2.8);
  EXPECT_EQ(level_after(adaptive, 40), 2);
  adaptive.evaluated(50, 2.8);
  EXPECT_EQ(level_after(adaptive, 50), 1);
  adaptive.evaluated(60, 2.8);  // a new level starts a new count
  EXPECT_EQ(level_after(adaptive, 60), 1);
  adaptive.evaluated(70, 2.8);
  EXPECT_EQ(level_after(adaptive, 70), 0);
}

TEST(AdaptivePrecision, WhatIsNotFiniteIsBad) {
  for (const double value : {kNan, kInf}) {
    AdaptivePrecision loss(watching({.loss_rise = 0.5}), 3), norm(watching({.norm_factor = 2.0}), 3),
        underflow(watching({.underflow_share = 0.5}), 3), validation(watching({.stalled_evaluations = 3}), 3),
        curvature(watching({.curvature = 2.0}), 3);
    loss.skipped(1, value, 1.0);
    norm.skipped(1, 2.0, value);
    underflow.underflowed(1, value);
    validation.evaluated(1, value);
    curvature.curved(1, value);
    for (AdaptivePrecision* adaptive : {&loss, &norm, &underflow, &validation, &curvature}) {
      EXPECT_EQ(level_after(*adaptive, 1), 1) << value;
    }
    // The same for an applied step without any history.
    AdaptivePrecision applied(watching({.loss_rise = 0.5}), 3);
    EXPECT_EQ(level_after(applied, 1, value), 1) << value;
  }
}

TEST(AdaptivePrecision, WhatIsOffIsNotLookedAt) {
  AdaptivePrecision adaptive(watching({.curvature = 2.0}), 3);
  for (int step = 1; step < 50; ++step) {
    adaptive.applied(step, kNan, kNan);
    adaptive.skipped(step, kNan, kNan);
    adaptive.underflowed(step, 1.0);
    adaptive.evaluated(step, kNan);
    EXPECT_EQ(level_after(adaptive, step), 2);
  }
}

TEST(AdaptivePrecision, SeveralKindsOfBadSignalsGoToTheTop) {
  AdaptivePrecision adaptive(watching({.loss_rise = 0.5, .underflow_share = 0.4}), 3);
  adaptive.underflowed(1, 0.9);
  adaptive.underflowed(2, 0.9);
  EXPECT_EQ(level_after(adaptive, 2), 1) << "twice the same kind is one";
  AdaptivePrecision three(watching({.loss_rise = 0.5, .underflow_share = 0.4}), 4, {.level = 3, .highest = 3});
  three.underflowed(3, 0.9);
  three.skipped(3, kNan, 1.0);
  const auto change = three.decide(3);
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->to, 0);
  EXPECT_EQ(change->causes.size(), 2u);
}

TEST(AdaptivePrecision, BetweenTwoSwitchesThereIsTime) {
  AdaptiveOptions options = watching({.underflow_share = 0.4});
  options.min_steps = 20;
  AdaptivePrecision adaptive(options, 3);
  adaptive.underflowed(5, 0.9);
  EXPECT_EQ(level_after(adaptive, 5), 1) << "the first need not wait";
  adaptive.underflowed(6, 0.9);
  EXPECT_EQ(level_after(adaptive, 24), 1);
  EXPECT_EQ(level_after(adaptive, 25), 0) << "a bad signal waits for min_steps";
}

TEST(AdaptivePrecision, GoesDownAfterSteadySteps) {
  AdaptiveOptions options = watching({.loss_rise = 0.5});
  options.start = 0;
  options.stable_steps = 20;
  AdaptivePrecision adaptive(options, 3);
  EXPECT_EQ(level_after(adaptive, 19), 0);
  const auto change = adaptive.decide(20);
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->to, 1);
  EXPECT_EQ(change->steady_steps, 20);
  EXPECT_EQ(level_after(adaptive, 39), 1);
  EXPECT_EQ(level_after(adaptive, 40), 2) << "going down from the start doubles no wait";
  EXPECT_EQ(level_after(adaptive, 1000), 2);
}

// The signal is neither bad nor steady, so the level stays.
TEST(AdaptivePrecision, InTheBandNothingChanges) {
  AdaptiveOptions options = watching({.loss_rise = 0.5, .norm_factor = 3.0});
  options.start = 1;
  options.stable_steps = 10;
  options.band = 0.5;
  const auto begin = [&] {
    AdaptivePrecision adaptive(options, 3);
    calm(adaptive, 1, 8);
    return adaptive;
  };
  AdaptivePrecision uneasy = begin(), easy = begin(), uneasy_norm = begin(), easy_norm = begin();
  uneasy.applied(9, 2.3, 1.0);  // above 0.25, half of the threshold
  easy.applied(9, 2.2, 1.0);
  uneasy_norm.applied(9, 2.0, 2.1);  // above 2, half-way from 1 to 3
  easy_norm.applied(9, 2.0, 1.9);
  EXPECT_EQ(level_after(uneasy, 18), 1);
  EXPECT_EQ(level_after(uneasy, 19), 2);
  EXPECT_EQ(level_after(easy, 10), 2);
  EXPECT_EQ(level_after(uneasy_norm, 18), 1);
  EXPECT_EQ(level_after(easy_norm, 10), 2);
}

TEST(AdaptivePrecision, EachReturnDoublesTheWaitUpToABound) {
  AdaptiveOptions options = watching({.underflow_share = 0.4});
  options.stable_steps = 10;
  options.max_switches = 1000;
  AdaptivePrecision adaptive(options, 3);
  int64_t step = 1;
  for (int returns = 0; returns < 9; ++returns) {
    adaptive.underflowed(step, 0.9);
    ASSERT_EQ(level_after(adaptive, step), 1);
    const int64_t wait = 10 * std::min<int64_t>(int64_t{1} << returns, 64);
    EXPECT_EQ(level_after(adaptive, step + wait - 1), 1) << returns;
    EXPECT_EQ(level_after(adaptive, step + wait), 2) << returns;
    step += wait + 1;
  }
}

// Levels go up, up and down; the last switch must be up.
TEST(AdaptivePrecision, TheLastSwitchIsKeptForGoingUp) {
  AdaptiveOptions options = watching({.underflow_share = 0.4});
  options.stable_steps = 10;
  options.max_switches = 4;
  AdaptivePrecision adaptive(options, 3);
  adaptive.underflowed(1, 0.9);
  EXPECT_EQ(level_after(adaptive, 1), 1);
  adaptive.underflowed(2, 0.9);
  EXPECT_EQ(level_after(adaptive, 2), 0);
  EXPECT_EQ(level_after(adaptive, 12), 1);
  EXPECT_EQ(level_after(adaptive, 500), 1) << "it could not come back up from level 2";
  adaptive.underflowed(501, 0.9);
  EXPECT_EQ(level_after(adaptive, 501), 0);
  EXPECT_EQ(adaptive.state().switches, 4);
  adaptive.underflowed(502, 0.9);
  for (const int64_t late : {502, 2000, 20000}) EXPECT_EQ(level_after(adaptive, late), 0);
  EXPECT_TRUE(adaptive.state().bad.empty());

  options.max_switches = 3;  // the last switch may skip a level: it goes to the highest level so far
  AdaptivePrecision skips_a_level(options, 3, {.level = 2, .highest = 0, .switches = 2, .raised = true});
  skips_a_level.underflowed(1, 0.9);
  EXPECT_EQ(level_after(skips_a_level, 1), 0);
}

// Losses of a level that went wrong do not count for the level above. Those of a sound level do count for the level
// below.
TEST(AdaptivePrecision, GoingUpForgetsLossesAndNormsAndGoingDownKeepsThem) {
  AdaptiveOptions options = watching({.loss_rise = 0.5, .norm_factor = 3.0});
  options.stable_steps = 20;
  AdaptivePrecision adaptive(options, 3);
  calm(adaptive, 1, 8);
  ASSERT_EQ(level_after(adaptive, 9, 5.0), 1);
  EXPECT_TRUE(adaptive.state().losses.empty());
  EXPECT_TRUE(adaptive.state().norms.empty());
  calm(adaptive, 10, 20);
  ASSERT_EQ(level_after(adaptive, 29), 2);
  EXPECT_EQ(adaptive.state().losses.size(), 10u);
  EXPECT_EQ(level_after(adaptive, 30, 2.7), 1) << "at once: the usual loss is known";
}

TEST(AdaptivePrecision, GoesOnFromItsState) {
  const AdaptiveOptions options = watching({.loss_rise = 0.5, .skipped_share = 0.2});
  AdaptivePrecision straight(options, 3);
  calm(straight, 1, 6);
  straight.skipped(7, 2.0, kInf);
  AdaptivePrecision resumed(options, 3, straight.state());
  for (AdaptivePrecision* adaptive : {&straight, &resumed}) {
    adaptive->applied(8, 2.9, 1.0);
    adaptive->skipped(9, 2.0, kInf);
    const auto change = adaptive->decide(9);
    ASSERT_TRUE(change.has_value());
    EXPECT_EQ(change->to, 0);
    EXPECT_EQ(change->causes.size(), 2u);
  }
}

TEST(AdaptivePrecision, DecisionsAreDueAtIntervals) {
  AdaptiveOptions options = watching({.loss_rise = 1.0});
  options.check_interval = 5;
  const AdaptivePrecision adaptive(options, 3);
  for (int64_t step = 0; step <= 10; ++step) EXPECT_EQ(adaptive.is_due(step), step == 5 || step == 10) << step;
}

TEST(AdaptiveOptions, ThoseWithoutSenseAreRefused) {
  const AdaptiveOptions good = watching({.loss_rise = 1.0});
  EXPECT_NO_THROW(validate(good, 3));
  EXPECT_THROW(validate(good, 1), ConfigError);
  EXPECT_THROW(validate(good, 2), ConfigError) << "start is 2";
  const auto with = [&good](auto change) {
    AdaptiveOptions options = good;
    change(options);
    return options;
  };
  EXPECT_THROW(validate(with([](auto& o) { o.loss_rise = 0.0; }), 3), ConfigError);
  EXPECT_THROW(validate(with([](auto& o) { o.warmup = 11; }), 3), ConfigError);
  EXPECT_THROW(validate(with([](auto& o) { o.norm_factor = 1.0; }), 3), ConfigError);
  EXPECT_THROW(validate(with([](auto& o) { o.band = 0.0; }), 3), ConfigError);
  EXPECT_THROW(validate(with([](auto& o) { o.max_switches = 0; }), 3), ConfigError);
  EXPECT_THROW(validate(with([](auto& o) { o.min_steps = 0; }), 3), ConfigError);
  EXPECT_THROW(validate(with([](auto& o) { o.underflow_share = 1.5; }), 3), ConfigError);
}

}  // namespace
}  // namespace mantissa
