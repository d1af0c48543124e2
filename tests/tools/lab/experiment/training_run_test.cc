// A training in memory: its record, and that it equals the training of `mantissa train`.
#include "tools/lab/experiment/training_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "comm/local/local_communicator.h"
#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tests/testing/error_of.h"
#include "tests/tools/config/minimal.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::TempFolder;

class TrainingRun : public ::testing::Test {
 protected:
  Config config(const std::vector<std::string>& settings) const {
    std::vector<std::string> all = {"model.layers=1",        "model.width=32",       "model.heads=2",
                                    "model.context=16",      "model.vocab=128",      "device=cpu",
                                    "train.micro_batch=2",   "train.global_batch=4", "train.steps=8",
                                    "train.eval_interval=4", "train.eval_batches=2", "optimizer.lr=1e-2",
                                    "data.train=" + text_};
    all.insert(all.end(), settings.begin(), settings.end());
    return testing::minimal_config(all);
  }

  TrainingRecord train(const std::vector<std::string>& settings) {
    const Config own = config(settings);
    return record_training(own, group_.rank(0));
  }

  static std::string letters() {
    std::string text;
    for (int index = 0; index < 4000; ++index) text += static_cast<char>('a' + index * index % 23);
    return text;
  }

  TempFolder folder_;
  std::string text_ = folder_.write("text.txt", letters());
  LocalGroup group_{1};
};

TEST_F(TrainingRun, TellsEveryStepAndTheValidation) {
  const TrainingRecord record = train({});
  EXPECT_TRUE(record.succeeded()) << record.failure;
  ASSERT_EQ(record.steps.size(), 8u);
  for (const TrainedStep& step : record.steps) {
    EXPECT_TRUE(std::isfinite(step.loss));
    EXPECT_GT(step.grad_norm, 0.0);
    EXPECT_EQ(step.scale, 1.0f);
    EXPECT_EQ(step.result, StepResult::kApplied);
    EXPECT_GT(step.seconds, 0.0);
  }
  ASSERT_EQ(record.validation.size(), 3u);
  EXPECT_EQ(record.validation[0].step, 0);
  EXPECT_EQ(record.validation[1].step, 4);
  EXPECT_EQ(record.validation[2].step, 8);
  EXPECT_LT(record.final_loss(), record.validation[0].loss) << "it learns";
  EXPECT_EQ(record.final_loss(), record.validation[2].loss);
  EXPECT_EQ(record.tokens_per_step, 4 * 16);
  EXPECT_GT(record.tokens_per_second(), 0.0);
  EXPECT_GE(record.peak_memory_bytes, record.memory.state.total());
  EXPECT_EQ(record.sent_bytes, 0.0) << "one rank sends nothing";
  EXPECT_EQ(record.scale_changes(), 0);
  EXPECT_FALSE(std::filesystem::exists("runs")) << "nothing is written";
}

TEST_F(TrainingRun, IsTheSameTwice) {
  const TrainingRecord one = train({"precision.recipe=delayed"}), two = train({"precision.recipe=delayed"});
  for (size_t step = 0; step < one.steps.size(); ++step) EXPECT_EQ(one.steps[step].loss, two.steps[step].loss);
  EXPECT_EQ(one.final_loss(), two.final_loss());
}

// Up to the switch it equals the fp32 run. A run with one precision differs from it from then on.
TEST_F(TrainingRun, FollowsASchedule) {
  const TrainingRecord plain = train({"precision.compute=fp32"}),
                       scheduled =
                           train({"precision.compute=fp32", "precision.schedule=[{after_step: 5, compute: bf16}]"});
  EXPECT_TRUE(scheduled.succeeded());
  ASSERT_EQ(scheduled.steps.size(), 8u);
  for (size_t step = 0; step < 5; ++step) EXPECT_EQ(scheduled.steps[step].loss, plain.steps[step].loss) << step;
  EXPECT_NE(scheduled.steps[5].loss, plain.steps[5].loss);
  EXPECT_NEAR(scheduled.steps[5].loss, plain.steps[5].loss, 0.02);
  ASSERT_EQ(scheduled.validation.size(), 3u);
}

TEST_F(TrainingRun, WithoutAnIntervalItIsEvaluatedAtBothEnds) {
  const TrainingRecord record = train({"train.eval_interval=0"});
  ASSERT_EQ(record.validation.size(), 2u);
  EXPECT_EQ(record.validation[1].step, 8);
}

TEST_F(TrainingRun, WithoutValidationTextTheLastLossesCount) {
  const TrainingRecord record = train({"data.validation_fraction=0", "train.eval_interval=0", "train.steps=20"});
  EXPECT_TRUE(record.validation.empty());
  EXPECT_EQ(record.final_loss(), (record.steps[18].loss + record.steps[19].loss) / 2);
}

TEST_F(TrainingRun, ThatFailsIsAResult) {
  const TrainingRecord record =
      train({"precision.compute=fp16", "scaler.mode=static", "scaler.init_scale=1e30", "scaler.max_scale=1e30"});
  EXPECT_FALSE(record.succeeded());
  EXPECT_NE(record.failure.find("stopped after 3 faults in a row, the last in step 3"), std::string::npos)
      << record.failure;
  ASSERT_EQ(record.steps.size(), 3u);
  EXPECT_EQ(record.steps[0].result, StepResult::kFault);
  EXPECT_EQ(record.skipped_share(StepResult::kFault), 1.0);
}

TEST_F(TrainingRun, WithoutAnyUpdateIsNoSuccess) {
  const TrainingRecord record = train({"precision.compute=fp16", "scaler.mode=static", "scaler.init_scale=1e30",
                                       "scaler.max_scale=1e30", "scaler.floor=clamp"});
  EXPECT_EQ(record.failure, "all of its 8 steps were skipped");
  EXPECT_EQ(record.skipped_share(StepResult::kOverflow), 1.0);
  EXPECT_TRUE(std::isfinite(record.final_loss()));
}

TEST_F(TrainingRun, ADynamicScaleComesDown) {
  const TrainingRecord record =
      train({"precision.compute=fp16", "scaler.init_scale=16777216", "scaler.max_scale=16777216", "train.steps=40"});
  EXPECT_TRUE(record.succeeded()) << record.failure;
  EXPECT_GT(record.skipped_share(StepResult::kOverflow), 0.0);
  EXPECT_GT(record.scale_changes(), 0);
  EXPECT_LT(record.smallest_scale(), 16777216.0f);
}

// With neither setting the same run stops at its fixed scale.
TEST_F(TrainingRun, LiftsLayersThatOverflowAndLeavesFp16AtTheFloor) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"precision.compute=fp16", "train.steps=20"});
    return more;
  };
  const std::vector<std::string> lifted = {"scaler.mode=static", "scaler.init_scale=1e6", "scaler.max_scale=1e6",
                                           "precision.fallback.overflows=1", "faults.max_consecutive=20"},
                                 floor = {"scaler.init_scale=1e7", "scaler.max_scale=1e7", "scaler.min_scale=1e7",
                                          "scaler.floor=bf16"};
  for (const auto& settings : {lifted, floor}) {
    const TrainingRecord record = train(with(settings));
    EXPECT_TRUE(record.succeeded()) << record.failure;
    EXPECT_NE(record.steps.front().result, StepResult::kApplied);
    EXPECT_EQ(record.steps.back().result, StepResult::kApplied);
  }
}

// The first two steps are those of fp32.
TEST_F(TrainingRun, ChangesTheLevelOfAdaptivePrecision) {
  const TrainingRecord plain = train({"precision.compute=fp32"}),
                       adaptive =
                           train({"precision.adaptive={levels: [{compute: fp32}, {compute: bf16}], start: 0, "
                                  "min_steps: 1, check_interval: 1, warmup: 1, stable_steps: 2, loss_rise: 10}"});
  EXPECT_TRUE(adaptive.succeeded()) << adaptive.failure;
  ASSERT_EQ(adaptive.steps.size(), plain.steps.size());
  for (size_t step = 0; step < 2; ++step) EXPECT_EQ(adaptive.steps[step].loss, plain.steps[step].loss) << step;
  EXPECT_NE(adaptive.steps.back().loss, plain.steps.back().loss);
  EXPECT_EQ(adaptive.undone, 0);
}

// fp16 overflows in the first step, which is undone, and the run begins anew in bf16.
TEST_F(TrainingRun, CountsTheStepsThatARollbackUndoes) {
  const TrainingRecord record =
      train({"scaler.mode=static", "scaler.init_scale=1e30", "scaler.max_scale=1e30",
             "precision.adaptive={levels: [{compute: bf16}, {compute: fp16}], start: 1, rollback: true, "
             "skipped_share: 0.01}"});
  EXPECT_TRUE(record.succeeded()) << record.failure;
  EXPECT_EQ(record.steps.size(), 8u);
  EXPECT_EQ(record.undone, 1);
  EXPECT_DOUBLE_EQ(record.undone_share(), 0.125);
  EXPECT_DOUBLE_EQ(record.cost_of_step(), 1.125 * record.median_step_seconds());
}

}  // namespace
}  // namespace mantissa
