#include "tools/advise/plan/shared_trials.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/analyze/sensitivity/planted_model.h"
#include "tools/advise/plan/shared_options.h"

namespace mantissa::testing {
namespace {

class SharedTrialsTest : public ::testing::Test {
 protected:
  std::vector<PlannedPlace> places(const std::vector<std::string>& kinds, int ranks = 1) const {
    return planned_shared(model_.config, DType::kBF16, kinds, ranks);
  }
  std::vector<SharedDamage> damages(const std::vector<PlannedPlace>& shared, const SharedTrials& trials) {
    return try_shared(model_.config, DType::kBF16, shared, HeldState(model_.session), trials, group_.rank(0));
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

// The same option in one place, found on one rank and on two, whose sums differ in their last bits alone.
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

// A learning rate at which nothing stays finite.
TEST_F(SharedTrialsTest, ATrainingThatFailsIsNotKnown) {
  Config config = model_.config;
  config.optimizer.schedule.peak = 1e30;
  config.optimizer.clip.kind = ClipOptions::Kind::kOff;
  config.faults.max_consecutive = 1;
  const auto found = try_shared(config, DType::kBF16, places({kMasters}), HeldState(model_.session),
                                {.windows = 2, .steps = 6}, group_.rank(0));
  for (const SharedDamage& one : found) EXPECT_TRUE(std::isnan(one.loss.mean)) << one.option;
}

}  // namespace
}  // namespace mantissa::testing
