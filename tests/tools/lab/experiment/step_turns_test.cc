#include "tools/lab/experiment/step_turns.h"

#include <gtest/gtest.h>

#include <cmath>

#include "comm/local/local_communicator.h"
#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

class StepTurns : public ::testing::Test {
 protected:
  Config config(const std::vector<std::string>& settings) const {
    std::vector<std::string> all = {"precision.compute=fp32"};
    all.insert(all.end(), settings.begin(), settings.end());
    return load_config(run_.config_path(), all);
  }
  std::vector<StepTimeDifference> compare(const Config& candidate, const std::vector<Config>& references) {
    LocalGroup group(1);
    auto found = compare_step_times(candidate, references, options_, group.rank(0));
    EXPECT_TRUE(found.has_value());
    return found.value_or(std::vector<StepTimeDifference>{});
  }

  SmallRun run_{"step_turns"};
  StepTimeOptions options_{.first_look = 6, .most_pairs = 7, .turn_seconds = 0.01};
};

TEST_F(StepTurns, MoreWorkIsSlowerAndLessIsFaster) {
  // Five times the samples a step: no load on the machine hides that.
  const Config small = config({}), large = config({"train.global_batch=60"});
  const auto found = compare(large, {small, large});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].verdict, ComparisonVerdict::kWorse);
  EXPECT_GT(found[0].log_ratio->mean, std::log(2.0));
  EXPECT_EQ(found[0].log_ratio->pairs, options_.first_look);
  EXPECT_LT(std::fabs(found[1].log_ratio->mean), std::log(2.0)) << "itself";
  EXPECT_EQ(compare(small, {large})[0].verdict, ComparisonVerdict::kBetter);
}

TEST_F(StepTurns, StepsThatAreSkippedHaveNoTime) {
  // No scale makes gradients of 2^16 times 2^30 fit into fp16.
  const Config failing =
      config({"precision.compute=fp16", "scaler.mode=static", "scaler.init_scale=1073741824", "scaler.floor=clamp"});
  const auto found = compare(config({}), {failing});
  EXPECT_FALSE(found[0].log_ratio.has_value());
  EXPECT_EQ(found[0].verdict, ComparisonVerdict::kInconclusive);
}

TEST_F(StepTurns, OnTwoRanksTheAnswerIsTheSame) {
  const Config small = config({}), large = config({"train.global_batch=60"});
  std::vector<std::vector<StepTimeDifference>> found(2);
  run_ranks(2, [&](Communicator& communicator) {
    found[static_cast<size_t>(communicator.rank())] =
        compare_step_times(large, {small}, options_, communicator).value();
  });
  ASSERT_EQ(found[0].size(), 1u);
  EXPECT_EQ(found[0][0].log_ratio->mean, found[1][0].log_ratio->mean);
  EXPECT_EQ(found[0][0].verdict, found[1][0].verdict);
}

}  // namespace
}  // namespace mantissa::testing
