#include "tools/lab/advise/plan/plan_advice.h"

#include <gtest/gtest.h>

#include "comm/local/local_communicator.h"
#include "tests/program/program.h"
#include "tools/lab/experiment/step_turns.h"

namespace mantissa::testing {
namespace {

class Validation : public ::testing::Test {
 protected:
  Config config(const std::vector<std::string>& settings) const {
    std::vector<std::string> all = {"train.steps=12", "precision.compute=fp32"};
    all.insert(all.end(), settings.begin(), settings.end());
    return load_config(run_.config_path(), all);
  }
  PlanValidation validate(const Config& plan, const std::vector<Candidate>& references, double margin) {
    LocalGroup group(1);
    return validate_plan(
        plan, references,
        {.steps = 12, .most_seeds = 4, .margin = {.value = margin, .is_share = false}, .time_pairs = time_pairs_},
        group.rank(0));
  }

  int64_t time_pairs_ = 0;  // timing takes longer than the losses here

  SmallRun run_{"plan_validation"};
};

TEST_F(Validation, APlanThatIsTheReferenceIsEqual) {
  const Config same = config({});
  time_pairs_ = 8;
  const PlanValidation found = validate(same, {{"fp32", same}}, 1e-3);
  ASSERT_EQ(found.against.size(), 1u);
  EXPECT_EQ(found.against[0].loss_verdict, ComparisonVerdict::kEqual);
  EXPECT_EQ(found.against[0].loss->mean, 0.0);
  EXPECT_EQ(found.against[0].loss->pairs, 3) << "decided at the first look";
  EXPECT_EQ(found.seeds, 3) << "step times do not need more seeds";
  EXPECT_TRUE(found.has_turns);
  ASSERT_TRUE(found.against[0].log_time.has_value());
  EXPECT_EQ(found.against[0].log_time->pairs, time_pairs_);
}

TEST_F(Validation, APlanThatLearnsLessIsWorse) {
  const PlanValidation found =
      validate(config({"optimizer.lr=1e-6"}), {{"fp32", config({})}, {"itself", config({"optimizer.lr=1e-6"})}}, 1e-3);
  ASSERT_EQ(found.against.size(), 2u);
  EXPECT_EQ(found.against[0].loss_verdict, ComparisonVerdict::kWorse);
  EXPECT_GT(found.against[0].loss->mean, 0.1);
  EXPECT_EQ(found.against[1].loss_verdict, ComparisonVerdict::kEqual);
  ASSERT_TRUE(found.low_loss.has_value());
  EXPECT_EQ(found.low_loss->pairs, found.seeds);
  EXPECT_LT(found.low_loss->mean, -0.1) << "the first reference beside the last";
}

// Losses that are not equal may still be within the promise of a plan.
TEST_F(Validation, SaysOfEveryVerdictThatRunsAreTooShort) {
  LocalGroup group(1);
  const ValidationOptions options{
      .steps = 4, .most_seeds = 3, .margin = {.value = 1e-9, .is_share = false}, .time_pairs = 0};
  const PlanValidation found =
      validate_plan(config({"optimizer.lr=1e-6"}), {{"fp32", config({})}}, options, group.rank(0));
  EXPECT_NE(found.against[0].loss_verdict, ComparisonVerdict::kEqual);
  EXPECT_EQ(found.against[0].why, "too few steps to tell: give more steps");
}

TEST_F(Validation, TheMarginIsAShareOfWhatTheReferenceLearns) {
  LocalGroup group(1);
  const PlanValidation found = validate_plan(config({"precision.compute=bf16"}), {{"fp32", config({})}},
                                             {.steps = 12, .most_seeds = 4, .time_pairs = 0}, group.rank(0));
  EXPECT_GT(found.against[0].margin, 0.0);
  EXPECT_LT(found.against[0].margin, 0.0025 * 5.6) << "no run gets from log(256) below 0";
  EXPECT_NE(found.against[0].loss_verdict, ComparisonVerdict::kEqual);
  EXPECT_TRUE(found.against[0].loss_verdict != ComparisonVerdict::kInconclusive || !found.against[0].why.empty() ||
              found.against[0].loss->pairs == 4);
}

// Its losses spread so far that any plan would be within the effect of seeds.
TEST_F(Validation, NothingIsEqualToAReferenceThatDiverges) {
  LocalGroup group(1);
  const Config diverging = config({"optimizer.lr=30", "optimizer.clip.mode=none"});
  const PlanValidation found = validate_plan(config({"precision.compute=bf16"}), {{"diverging", diverging}},
                                             {.steps = 12, .most_seeds = 4, .time_pairs = 0}, group.rank(0));
  EXPECT_EQ(found.against[0].margin, 0.0);
  EXPECT_NE(found.against[0].loss_verdict, ComparisonVerdict::kEqual);
}

TEST_F(Validation, APlanWhoseRunFailsIsWorseAndAReferenceThatFailsIsInconclusive) {
  const Config good = config({});
  // No scale makes gradients of 2^16 times 2^30 fit into fp16.
  const Config failing = config({"precision.compute=fp16", "scaler.mode=static", "scaler.init_scale=1073741824",
                                 "scaler.floor=fault", "faults.max_consecutive=2"});
  const PlanValidation plan_fails = validate(failing, {{"fp32", good}}, 1e-3);
  EXPECT_FALSE(plan_fails.failure.empty());
  EXPECT_EQ(plan_fails.against[0].loss_verdict, ComparisonVerdict::kWorse);
  EXPECT_EQ(plan_fails.seeds, 1);
  const PlanValidation both_fail = validate(failing, {{"fp16", failing}, {"fp32", good}}, 1e-3);
  EXPECT_EQ(both_fail.against[0].loss_verdict, ComparisonVerdict::kInconclusive);
  EXPECT_EQ(both_fail.against[1].loss_verdict, ComparisonVerdict::kWorse);
  EXPECT_FALSE(both_fail.low_loss.has_value());
  const PlanValidation reference_fails = validate(good, {{"fp16", failing}}, 1e-3);
  EXPECT_TRUE(reference_fails.failure.empty());
  EXPECT_EQ(reference_fails.against[0].loss_verdict, ComparisonVerdict::kInconclusive);
  EXPECT_FALSE(reference_fails.against[0].loss.has_value());
}

}  // namespace
}  // namespace mantissa::testing
