// A training whose precision changes on the way: as if it had been stopped and gone on with another configuration.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

// fp32 for 6 steps, bf16 up to step 13, then 8 bits. All states of precision differ: dtype of working weights, shards,
// loss scale (none, dynamic, dynamic), scales of delayed scaling.
const std::vector<std::string> kScheduled = {
    "precision.compute=fp32", "scaler.init_scale=1024", "scaler.growth_interval=4", "model.dropout=0.1",
    "precision.schedule=[{after_step: 6, compute: fp16}, {after_step: 13, compute: bf16, recipe: delayed}]"};

class PrecisionSchedule : public ::testing::TestWithParam<int> {};

TEST_P(PrecisionSchedule, EqualsRunsInEachPrecisionOneAfterTheOther) {
  const int ranks = GetParam();
  // Two ranks are processes, with the bits of threads.
  const ThreadedRun scheduled("scheduled" + std::to_string(ranks), ranks == 2 ? Ranks::kProcesses : Ranks::kThreads),
      chain("chain" + std::to_string(ranks));
  const Outcome outcome = scheduled.train(ranks, kScheduled);
  EXPECT_NE(outcome.output.find("step 6: the precision changes with the next step, by precision.schedule[0]:"),
            std::string::npos)
      << outcome.output;
  const std::vector<std::string> plain(kScheduled.begin(), kScheduled.end() - 1);
  chain.train(ranks, with(plain, {"train.stop_at_step=6"}));
  chain.train(ranks, with(plain, {"train.stop_at_step=13", "precision.compute=fp16", "checkpoint.allow_changes=true"}));
  chain.train(ranks,
              with(plain, {"precision.compute=bf16", "precision.recipe=delayed", "checkpoint.allow_changes=true"}));
  EXPECT_EQ(scheduled.losses(), chain.losses());
  EXPECT_EQ(scheduled.hashes(20), chain.hashes(20));
  const auto switches = scheduled.records("precision");
  ASSERT_EQ(switches.size(), 2u);
  EXPECT_EQ(switches[0].at("step"), 6);
  EXPECT_EQ(switches[0].at("cause"), "precision.schedule[0]");
  EXPECT_EQ(switches[1].at("step"), 13);
}

// In every phase, and where two meet.
TEST_P(PrecisionSchedule, StoppedAndResumedInAnyPhaseEqualsTheWholeBitForBit) {
  const int ranks = GetParam();
  const ThreadedRun straight("straight" + std::to_string(ranks));
  straight.train(ranks, kScheduled);
  for (const int stop : {3, 6, 9, 13, 16}) {
    const ThreadedRun halves("halves" + std::to_string(stop) + "_" + std::to_string(ranks));
    halves.train(ranks, with(kScheduled, {"train.stop_at_step=" + std::to_string(stop)}));
    const Outcome second = halves.train(ranks, kScheduled);
    EXPECT_NE(second.output.find("resumed from"), std::string::npos) << second.output;
    EXPECT_EQ(straight.losses(), halves.losses()) << stop;
    EXPECT_EQ(straight.hashes(20), halves.hashes(20)) << stop;
    const Checkpoint a = open_checkpoint(straight.checkpoint_folder(20)),
                     b = open_checkpoint(halves.checkpoint_folder(20));
    for (const char* key : {"scaler", "applied_steps", "next_step", "run"}) {
      EXPECT_EQ(a.state.at(key), b.state.at(key)) << key << " after a stop at " << stop;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PrecisionSchedule, ::testing::Values(1, 2));

// Masters and moments are what they were.
TEST(PrecisionScheduleOnce, ASwitchLeavesTheOptimizerAlone) {
  const ThreadedRun before("before"), after("after");
  before.train(2, with(kScheduled, {"train.stop_at_step=6", "checkpoint.interval=6"}));
  after.train(2, with(kScheduled, {"train.stop_at_step=6", "precision.schedule=[]"}));
  EXPECT_EQ(before.hashes(6), after.hashes(6));
}

// Its files are open: it has the same data as before, and no file is missing.
TEST(PrecisionScheduleOnce, ASwitchKeepsTheData) {
  const SmallRun run("keeps_data");
  const Outcome outcome =
      interrupt(run, mpirun(2), "mv '" + run.data_path() + "' '" + run.data_path() + ".away'",
                {"train.steps=40", "train.log_interval=1000", "precision.schedule=[{after_step: 30, compute: bf16}]",
                 "test.faults=[{kind: sleep, step: 25, phase: data, seconds: 1}]"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(run.records("precision").size(), 1u);
  EXPECT_EQ(run.losses().size(), 40u);
}

TEST(PrecisionScheduleOnce, AnotherScheduleNeedsLeaveToChangeTheTraining) {
  const ThreadedRun run("changed");
  run.train(1, with(kScheduled, {"train.stop_at_step=3"}));
  const Outcome refused = run.try_train(1, with(kScheduled, {"precision.schedule=[{after_step: 6, compute: bf16}]"}));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_NE(refused.output.find("precision.schedule[0].compute: fp16 -> bf16"), std::string::npos) << refused.output;
}

// A later phase that the model rejects is rejected before the run begins.
TEST(PrecisionScheduleOnce, EveryPhaseIsCheckedBeforeTheFirstBegins) {
  const ThreadedRun run("refused");
  const Outcome outcome = run.try_train(2, {"precision.schedule=[{after_step: 6, recipe: block}]"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_NE(outcome.output.find("precision.schedule[0]"), std::string::npos) << outcome.output;
  EXPECT_FALSE(run.has_checkpoint(6));
  EXPECT_TRUE(run.records("start").empty());
}

// As where a shorter training is tried out.
TEST(PrecisionScheduleOnce, APhaseBehindTheEndIsWarnedOf) {
  const ThreadedRun run("behind");
  const Outcome outcome =
      run.train(1, {"precision.compute=fp32", "train.steps=2", "optimizer.warmup_steps=1",
                    "precision.schedule=[{after_step: 1, compute: bf16}, {after_step: 2, compute: fp16}]"});
  EXPECT_NE(outcome.output.find("after step 2, and train.steps = 2: it is never reached"), std::string::npos)
      << outcome.output;
  EXPECT_EQ(outcome.output.find("after step 1, and"), std::string::npos) << outcome.output;
}

TEST(PrecisionScheduleOnce, WhatReadsARunKnowsThePrecisionThatItHasComeTo) {
  const ThreadedRun run("read");
  run.train(1, kScheduled);
  const Outcome text = run_verb({"generate", run.run_dir(), "--prompt", "a", "--tokens", "4"});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  const std::string json = run.folder() + "/analysis.json";
  const Outcome analysis = run_verb({"analyze", "model", run.run_dir(), "--batches", "1", "--json", json});
  ASSERT_EQ(analysis.exit_code, 0) << analysis.output;
  EXPECT_EQ(nlohmann::json::parse(read_file(json)).at("setting").at("recipe"), "delayed");
  const Outcome other =
      run_verb({"analyze", "model", run.run_dir(), "precision.recipe=mxfp8", "--batches", "1", "--json", json});
  ASSERT_EQ(other.exit_code, 0) << other.output;
  EXPECT_NE(other.output.find("precision.schedule of the run is dropped"), std::string::npos) << other.output;
  const auto setting = nlohmann::json::parse(read_file(json)).at("setting");
  EXPECT_EQ(setting.at("recipe"), "mxfp8");
  EXPECT_EQ(setting.at("compute"), "bf16");
}

}  // namespace
}  // namespace mantissa::testing
