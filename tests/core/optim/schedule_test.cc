#include "core/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "core/base/check.h"

namespace mantissa {
namespace {

// A few operations in double on values up to 8.
constexpr double kRounding = 1e-14;

ScheduleOptions options_of(ScheduleKind kind) {
  return {.kind = kind, .peak = 8.0, .final_rate = 2.0, .warmup_steps = 4, .total_steps = 12, .decay_steps = 4};
}

TEST(Schedule, AllWarmUpLinearlyAndReachThePeakAtTheLastWarmUpStep) {
  for (const auto kind :
       {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kWarmupStableDecay}) {
    const ScheduleOptions options = options_of(kind);
    EXPECT_EQ(learning_rate(options, 0), 2.0);
    EXPECT_EQ(learning_rate(options, 1), 4.0);
    EXPECT_EQ(learning_rate(options, 2), 6.0);
    EXPECT_EQ(learning_rate(options, 3), 8.0);
    EXPECT_EQ(learning_rate(options, 4), 8.0);
  }
}

TEST(Schedule, WithoutWarmUpTheFirstStepHasThePeak) {
  for (const auto kind :
       {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kWarmupStableDecay}) {
    ScheduleOptions options = options_of(kind);
    options.warmup_steps = 0;
    EXPECT_EQ(learning_rate(options, 0), 8.0);
  }
}

TEST(Schedule, ConstantStaysAtThePeak) {
  const ScheduleOptions options = options_of(ScheduleKind::kConstant);
  for (const int64_t step : {5, 11, 12, 1000}) EXPECT_EQ(learning_rate(options, step), 8.0);
}

TEST(Schedule, LinearByHand) {
  const ScheduleOptions options = options_of(ScheduleKind::kLinear);
  EXPECT_EQ(learning_rate(options, 6), 6.5);  // a quarter of the way from 8 to 2
  EXPECT_EQ(learning_rate(options, 8), 5.0);
  EXPECT_EQ(learning_rate(options, 11), 2.75);
  EXPECT_EQ(learning_rate(options, 12), 2.0);
  EXPECT_EQ(learning_rate(options, 1000), 2.0);
}

TEST(Schedule, CosineByHand) {
  const ScheduleOptions options = options_of(ScheduleKind::kCosine);
  EXPECT_NEAR(learning_rate(options, 6), 5.0 + 3.0 * std::sqrt(0.5), kRounding);  // cos(pi/4)
  EXPECT_NEAR(learning_rate(options, 8), 5.0, kRounding);                         // cos(pi/2)
  EXPECT_NEAR(learning_rate(options, 10), 5.0 - 3.0 * std::sqrt(0.5), kRounding);
  EXPECT_EQ(learning_rate(options, 12), 2.0);
  EXPECT_EQ(learning_rate(options, 13), 2.0);
}

TEST(Schedule, WarmupStableDecayByHand) {
  const ScheduleOptions options = options_of(ScheduleKind::kWarmupStableDecay);
  EXPECT_EQ(learning_rate(options, 7), 8.0);  // the last stable step
  EXPECT_EQ(learning_rate(options, 8), 8.0);  // the decay begins at the peak
  EXPECT_EQ(learning_rate(options, 9), 6.5);
  EXPECT_EQ(learning_rate(options, 11), 3.5);
  EXPECT_EQ(learning_rate(options, 12), 2.0);
  ScheduleOptions never = options;
  never.decay_steps = 0;
  EXPECT_EQ(learning_rate(never, 11), 8.0);
  EXPECT_EQ(learning_rate(never, 12), 2.0);
}

TEST(Schedule, NeverLeavesTheRangeAndNeverRisesAfterTheWarmUp) {
  for (const auto kind : {ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kWarmupStableDecay}) {
    const ScheduleOptions options{
        .kind = kind, .peak = 3e-4, .final_rate = 3e-5, .warmup_steps = 7, .total_steps = 101, .decay_steps = 30};
    for (int64_t step = 7; step < 120; ++step) {
      const double rate = learning_rate(options, step);
      EXPECT_LE(rate, learning_rate(options, step - 1)) << static_cast<int>(kind) << " at " << step;
      EXPECT_GE(rate, 3e-5 * (1 - 1e-15)) << static_cast<int>(kind) << " at " << step;
    }
  }
}

TEST(Schedule, WholeRunOfWarmUp) {
  ScheduleOptions options = options_of(ScheduleKind::kCosine);
  options.warmup_steps = options.total_steps;
  validate(options);
  EXPECT_EQ(learning_rate(options, 11), 8.0);
  EXPECT_EQ(learning_rate(options, 12), 2.0);
}

TEST(Schedule, RefusesImpossibleOptions) {
  const auto refused = [](auto change) {
    ScheduleOptions options = options_of(ScheduleKind::kWarmupStableDecay);
    change(options);
    EXPECT_THROW(validate(options), ConfigError);
  };
  EXPECT_NO_THROW(validate(options_of(ScheduleKind::kWarmupStableDecay)));
  refused([](ScheduleOptions& options) { options.peak = std::nan(""); });
  refused([](ScheduleOptions& options) { options.peak = 0.0; });
  refused([](ScheduleOptions& options) { options.final_rate = 9.0; });
  refused([](ScheduleOptions& options) { options.warmup_steps = 13; });
  refused([](ScheduleOptions& options) { options.total_steps = 0; });
  refused([](ScheduleOptions& options) { options.decay_steps = 9; });  // 4 + 9 > 12
  EXPECT_THROW(learning_rate(options_of(ScheduleKind::kCosine), -1), ContractError);
}

}  // namespace
}  // namespace mantissa
