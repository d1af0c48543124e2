#include "tools/lab/advise/plan/plan_advice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "tests/tools/lab/analyze/sensitivity/planted_model.h"
#include "tools/train/checkpoint.h"

namespace mantissa::testing {
namespace {

class SharedTrialsTest : public ::testing::Test {
 protected:
  std::vector<PlannedPlace> places(const std::vector<std::string>& kinds, int ranks = 1) const {
    return planned_shared(model_.config, DType::kBF16, kinds, ranks);
  }
  std::vector<SharedDamage> damages(const std::vector<PlannedPlace>& shared, const SharedTrials& trials) {
    return damages_with(model_.config, shared, trials).value();
  }
  std::optional<std::vector<SharedDamage>> damages_with(const Config& config, const std::vector<PlannedPlace>& shared,
                                                        const SharedTrials& trials, DType low = DType::kBF16) {
    return try_shared(config, low, shared, HeldState(model_.session), trials, group_.rank(0));
  }

  PlantedModel model_{"shared_trials"};
  LocalGroup group_{1};
};

TEST_F(SharedTrialsTest, FindsWhatEveryOptionDoesToTheLoss) {
  const auto found = damages(places({kMoments, kMasters}), {.windows = 3, .steps = 4});
  ASSERT_EQ(found.size(), 6u) << "two of each of three places";
  EXPECT_EQ(found[0].place, "optimizer.first_moment");
  EXPECT_EQ(found[0].option, "bf16");
  EXPECT_EQ(found[5].place, "optimizer.master");
  EXPECT_EQ(found[5].option, "none_stochastic");
  for (const SharedDamage& one : found) {
    EXPECT_NE(one.loss.mean, 0.0) << one.place << " " << one.option << " rounds something";
    EXPECT_LT(std::abs(one.loss.mean), 0.05) << one.place << " " << one.option;
    EXPECT_TRUE(std::isfinite(one.loss.error));
  }
}

TEST_F(SharedTrialsTest, AWireIsTriedBetweenSeveralRanks) {
  EXPECT_EQ(ranks_of_trials(places({kMoments, kWire}, 1), 1), 1);
  EXPECT_EQ(ranks_of_trials(places({kMoments}, 6), 6), 1) << "no choice of a wire";
  EXPECT_EQ(ranks_of_trials(places({kWire}, 6), 6), 2);
  EXPECT_EQ(ranks_of_trials(places({kWire}, 9), 9), 3);
  const auto found = damages(places({kWire}, 3), {.windows = 2, .steps = 3, .ranks = 3});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].place, "comm.wire_dtype");
  EXPECT_NE(found[0].loss.mean, 0.0) << "contributions were rounded";
  EXPECT_LT(std::abs(found[0].loss.mean), 0.05);
}

TEST_F(SharedTrialsTest, LeaveThePointAsItWasAndAreAlikeInEveryRun) {
  const auto shared = places({kMoments});
  const SharedTrials trials{.windows = 2, .steps = 3};
  const auto first = damages(shared, trials), second = damages(shared, trials);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].loss.mean, second[i].loss.mean);
}

TEST_F(SharedTrialsTest, AreDoneAtThePeakOfTheLearningRate) {
  const SharedTrials trials{.windows = 2, .steps = 3};
  Config slow = model_.config;
  slow.optimizer.schedule.warmup_steps = slow.optimizer.schedule.total_steps;
  const auto peak = damages(places({kMoments}), trials), early = damages_with(slow, places({kMoments}), trials).value();
  for (size_t i = 0; i < peak.size(); ++i) EXPECT_EQ(early[i].loss.mean, peak[i].loss.mean) << "of a long warm-up";
}

// Weights stay finite, but all steps are skipped.
TEST_F(SharedTrialsTest, StepsThatAreSkippedSayNothing) {
  const SharedTrials trials{.windows = 2, .steps = 2, .fp16_scale = 0x1p100};
  EXPECT_FALSE(damages_with(model_.config, places({kMoments}), trials, DType::kF16).has_value());
  EXPECT_TRUE(damages_with(model_.config, places({kMoments}), trials, DType::kBF16).has_value()) << "without a scale";
}

TEST_F(SharedTrialsTest, ATrainingThatFailsIsNotKnown) {
  Config config = model_.config;
  config.optimizer.schedule.peak = 1e30;
  config.optimizer.clip.kind = ClipOptions::Kind::kOff;
  EXPECT_FALSE(damages_with(config, places({kMasters}), {.windows = 2, .steps = 6}).has_value());
}

// Models a layer that overflows in 16 bits according to the analysis.
TEST_F(SharedTrialsTest, LayersWithoutA16BitOptionComputeInFp32) {
  std::vector<PlannedPlace> shared = places({kMoments}),
                            all = {{.layer = kPlanted, .options = {{.name = "fp32", .compute = DType::kF32}}}};
  all.insert(all.end(), shared.begin(), shared.end());
  const SharedTrials trials{.windows = 2, .steps = 2};
  const auto without = damages(shared, trials), with = damages(all, trials);
  ASSERT_EQ(without.size(), with.size());
  EXPECT_NE(without[1].loss.mean, with[1].loss.mean);
}

}  // namespace
}  // namespace mantissa::testing
