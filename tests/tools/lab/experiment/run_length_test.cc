// Runs with made-up losses that are long enough to judge, or are not.
#include "tools/lab/experiment/training_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

namespace mantissa {
namespace {

using Curve = std::function<double(double done)>;  // the loss at a share of the steps

TrainingRecord run_with(const Curve& curve, int steps = 100) {
  TrainingRecord record{.steps = {}, .validation = {}, .memory = {}};
  for (int step = 0; step < steps; ++step) {
    record.steps.push_back({.loss = curve(static_cast<double>(step) / (steps - 1)), .grad_norm = 1.0});
  }
  return record;
}

double settled(double done) { return 2.0 + 3.0 * std::exp(-10.0 * done); }

TEST(LateLearning, IsTheShareOfTheLastQuarter) {
  EXPECT_NEAR(late_learning(run_with([](double done) { return 5.0 - done; })), 0.25 / 0.95, 0.01) << "falls evenly";
  EXPECT_LT(late_learning(run_with(settled)), 0.001);
  EXPECT_TRUE(std::isnan(late_learning(run_with(settled, 9))));
  EXPECT_TRUE(std::isnan(late_learning(run_with([](double done) { return 5.0 + done; }))));
}

// It falls with the sum of the rates, which go down to 0 evenly: at the end it is flat, and half way it is not.
TEST(LateLearning, IsOfTheStepsAtAHighRate) {
  TrainingRecord run = run_with([](double done) { return 5.0 - 2.0 * done + done * done; }, 1000);
  for (size_t step = 0; step < 1000; ++step)
    run.steps[step].learning_rate = 1e-3 * (1.0 - static_cast<double>(step) / 999);
  // The loss falls by 2x - x^2: 0.7225 until x = 0.475, the centre of the last tenth, 0.578 until x = 0.35.
  const auto fallen = [](double x) { return 2.0 * x - x * x; };
  EXPECT_NEAR(late_learning(run), 1.0 - fallen(0.35) / fallen(0.475), 0.002);
  for (TrainedStep& step : run.steps) step.learning_rate = 1e-3;
  EXPECT_NEAR(late_learning(run), 1.0 - fallen(0.7) / fallen(0.95), 0.002);
  for (size_t step = 0; step < 1000; ++step) run.steps[step].learning_rate = step < 5 ? 1e-3 : 1e-4;
  EXPECT_TRUE(std::isnan(late_learning(run))) << "too few steps at a high rate";
}

TEST(LateGrowth, IsOfTheDifferenceFromQuarterToQuarter) {
  const TrainingRecord baseline = run_with(settled);
  EXPECT_NEAR(late_growth(baseline, run_with([](double done) { return settled(done) + 0.4 * done; })), 0.1, 0.002);
  EXPECT_NEAR(late_growth(baseline, run_with([](double done) { return settled(done) + 0.4; })), 0.0, 1e-12);
}

// Three pairs; what the seed does to the candidate's loss differs by up to `spread`.
std::string verdict(const Curve& baseline, const Curve& candidate, double margin, double spread = 0.0) {
  std::vector<TrainingRecord> first, second;
  for (int seed = 0; seed < 3; ++seed) {
    first.push_back(run_with(baseline));
    second.push_back(run_with([&](double done) { return candidate(done) + spread * (seed - 1) * done; }));
  }
  return too_short(first, second, margin, 0.95);
}

TEST(TooShort, ALossThatStillFallsFastSaysNothing) {
  const auto even = [](double done) { return 5.0 - done; };
  const auto worse = [](double done) { return 5.0 - done + 1e-6; };
  EXPECT_NE(verdict(even, worse, 0.1).find("26 % of what the baseline learnt came in the last quarter"),
            std::string::npos)
      << verdict(even, worse, 0.1);
  EXPECT_EQ(verdict(even, even, 0.1), "") << "the same to the bit";
  EXPECT_EQ(verdict(
                settled, [](double done) { return settled(done) + 1e-6; }, 0.1),
            "");
}

// Runs of the baseline that learn these shares late: 2 nats in all, the share of it in the last quarter.
std::string verdict_of_shares(const std::vector<double>& shares) {
  std::vector<TrainingRecord> first, second;
  for (const double share : shares) {
    first.push_back(run_with([&](double done) { return done < 0.5 ? 5.0 : done < 0.8 ? 3.0 + 2.0 * share : 3.0; }));
    second.push_back(first.back());
    second.back().steps[1].loss += 1e-6;
    EXPECT_NEAR(late_learning(first.back()), share, 1e-9);
  }
  return too_short(first, second, 0.1, 0.95);
}

// 7 % on average, and with three runs up to 7 + 4.303 sd / sqrt(3) %.
TEST(TooShort, LateLearningCountsAtTheEndOfItsInterval) {
  EXPECT_EQ(verdict_of_shares({0.07, 0.06, 0.08}), "") << "at most 9.5 %";
  const std::string scattered = verdict_of_shares({0.07, 0.03, 0.11});
  EXPECT_NE(scattered.find("7 % of what the baseline learnt"), std::string::npos) << scattered;
  EXPECT_NE(scattered.find("-3 to 17 %, where at most 10 % must be certain: give more steps, or more seeds"),
            std::string::npos)
      << scattered;
  EXPECT_EQ(verdict_of_shares({0.07, 0.03, 0.11, 0.07, 0.07, 0.06, 0.08, 0.07}), "") << "more seeds know it better";
  EXPECT_NE(verdict_of_shares({0.2}), "");
  EXPECT_EQ(verdict_of_shares({0.07}), "") << "one run has no interval, and is never called equal";
}

TEST(TooShort, ADifferenceThatGrowsWillExceedTheMargin) {
  const Curve grows = [](double done) { return settled(done) + 0.04 * done; };
  EXPECT_NE(verdict(settled, grows, 0.05, 0.001).find("the difference grows by 0.01 nats"), std::string::npos);
  EXPECT_EQ(verdict(settled, grows, 0.2, 0.001), "") << "twice as many steps would not make it exceed the margin";
  EXPECT_EQ(verdict(settled, grows, 0.05, 0.2), "") << "the growth may be chance";
  EXPECT_EQ(verdict(
                settled, [](double done) { return settled(done) - 0.04 * done; }, 0.02, 0.001),
            "")
      << "a gain";
}

}  // namespace
}  // namespace mantissa
