// Runs that are told to stop: they save, leave with exit code 75, and continue to the same bits.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/train/program.h"

namespace mantissa::testing {
namespace {

constexpr int kPreempted = 75;
constexpr int64_t kSteps = 400;
const std::vector<std::string> kLong = {fmt::format("train.steps={}", kSteps), "train.log_interval=100"};

// Expects one record of a stop, a checkpoint of that step, and that a second start ends with the weights of `whole`.
void expect_continues(const SmallRun& run, int ranks, const Outcome& outcome, const std::string& cause,
                      const SmallRun& whole) {
  EXPECT_EQ(outcome.exit_code, kPreempted) << outcome.output;
  const auto stops = run.records("stop");
  ASSERT_EQ(stops.size(), 1u) << outcome.output;
  EXPECT_EQ(stops[0].at("cause"), cause);
  const int64_t step = stops[0].at("step");
  EXPECT_LT(step, kSteps);
  EXPECT_TRUE(run.has_checkpoint(step)) << outcome.output;
  EXPECT_NE(outcome.output.find(fmt::format("stopped after step {} of {}: {}, on rank ", step, kSteps, cause)),
            std::string::npos)
      << outcome.output;
  run.train(ranks, kLong);
  EXPECT_EQ(run.hashes(kSteps), whole.hashes(kSteps));
}

TEST(Preemption, ASignalSavesAndTheSameCommandContinues) {
  SmallRun whole("preempted_whole_1");
  whole.train(1, kLong);
  for (const std::string name : {"TERM", "USR1", "INT", "HUP"}) {
    SmallRun run("preempted_by_" + name);
    // The shell starts background processes with SIGINT ignored, and the program leaves it so: env resets it.
    const Outcome outcome = interrupt(run, "env --default-signal=INT ", "kill -" + name + " $job", kLong);
    expect_continues(run, 1, outcome, "SIG" + name, whole);
  }
}

TEST(Preemption, ASignalToOneRankStopsAllAtTheSameStep) {
  SmallRun whole("preempted_whole_2");
  whole.train(2, kLong);
  SmallRun run("preempted_rank");
  const Outcome outcome = interrupt(run, mpirun(2), signal_last_rank("USR1"), kLong);
  expect_continues(run, 2, outcome, "SIGUSR1", whole);
  EXPECT_EQ(run.records("stop")[0].at("rank"), 1);

  SmallRun all("preempted_mpirun");
  expect_continues(all, 2, interrupt(all, mpirun(2), "kill -USR1 $job", kLong), "SIGUSR1", whole);
}

TEST(Preemption, EvaluationsAreThoseOfAnUninterruptedRun) {
  const std::vector<std::string> settings = with(kLong, {"train.eval_interval=1"});
  SmallRun whole("preempted_whole_evaluated"), run("preempted_evaluated");
  whole.train(1, settings);
  EXPECT_EQ(interrupt(run, "", "kill -TERM $job", settings).exit_code, kPreempted);
  run.train(1, settings);
  EXPECT_EQ(run.records("validation"), whole.records("validation"));
}

TEST(Preemption, TimeLimitsSaveAndLeaveInTime) {
  SmallRun run("time_limit");
  // Two seconds of these four are kept for the checkpoint.
  Outcome outcome = run.try_train(1, {"train.steps=1000000", "train.log_interval=1000", "train.max_minutes=0.07"});
  EXPECT_EQ(outcome.exit_code, kPreempted) << outcome.output;
  ASSERT_EQ(run.records("stop").size(), 1u) << outcome.output;
  EXPECT_EQ(run.records("stop")[0].at("cause"), "train.max_minutes");

  SmallRun job("slurm_time_limit");
  outcome = run_shell("SLURM_JOB_END_TIME=$(($(date +%s) + 5)) " +
                      command_line(program_under_test(),
                                   {"train", job.config_path(), "train.steps=1000000", "train.log_interval=1000"}));
  EXPECT_EQ(outcome.exit_code, kPreempted) << outcome.output;
  ASSERT_EQ(job.records("stop").size(), 1u) << outcome.output;
  EXPECT_EQ(job.records("stop")[0].at("cause"), "the end of the Slurm job");
}

}  // namespace
}  // namespace mantissa::testing
