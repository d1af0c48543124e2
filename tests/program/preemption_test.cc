// Runs that are told to stop: they save, leave with exit code 75, and continue to the same bits.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

#include "tests/program/threaded_run.h"
#include "tests/testing/every_case.h"

namespace mantissa::testing {
namespace {

constexpr int kPreempted = 75;
constexpr int64_t kSteps = 400;
const std::vector<std::string> kLong = {fmt::format("train.steps={}", kSteps), "train.log_interval=100"};

// Expects a single record of a stop, and a checkpoint of that step.
void expect_stopped(const SmallRun& run, const Outcome& outcome, const std::string& cause) {
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
}

// Also that a second start ends with the weights of `whole`.
void expect_continues(const SmallRun& run, int ranks, const Outcome& outcome, const std::string& cause,
                      const SmallRun& whole) {
  expect_stopped(run, outcome, cause);
  run.train(ranks, kLong);
  EXPECT_EQ(run.hashes(kSteps), whole.hashes(kSteps));
}

TEST(Preemption, ASignalSavesAndTheSameCommandContinues) {
  ThreadedRun whole("preempted_whole_1");
  whole.train(1, kLong);
  for (const std::string name : {"TERM", "USR1", "INT", "HUP"}) {
    SmallRun run("preempted_by_" + name);
    // The shell starts background processes with SIGINT ignored, and the program leaves it so: env resets it.
    const Outcome outcome = interrupt(run, "env --default-signal=INT ", "kill -" + name + " $job", kLong);
    if (name == "TERM" || every_case()) {
      expect_continues(run, 1, outcome, "SIG" + name, whole);
    } else {
      expect_stopped(run, outcome, "SIG" + name);  // the checkpoint knows no signal
    }
  }
}

TEST(Preemption, ASignalToOneRankStopsAllAtTheSameStep) {
  ThreadedRun whole("preempted_whole_2");
  whole.train(2, kLong);
  SmallRun run("preempted_rank");
  const Outcome outcome = interrupt(run, mpirun(2), "kill -USR1 " + rank_1_of("$job"), kLong);
  expect_continues(run, 2, outcome, "SIGUSR1", whole);
  EXPECT_EQ(run.records("stop")[0].at("rank"), 1);

  SmallRun all("preempted_mpirun");
  expect_stopped(all, interrupt(all, mpirun(2), "kill -USR1 $job", kLong), "SIGUSR1");
}

TEST(Preemption, EvaluationsAreThoseOfAnUninterruptedRun) {
  const std::vector<std::string> settings = with(kLong, {"train.eval_interval=1"});
  ThreadedRun whole("preempted_whole_evaluated"), run("preempted_evaluated");
  whole.train(1, settings);
  EXPECT_EQ(interrupt(run, "", "kill -TERM $job", settings).exit_code, kPreempted);
  run.train(1, settings);
  EXPECT_EQ(run.records("validation"), whole.records("validation"));
}

TEST(Preemption, TimeLimitsSaveAndLeaveInTime) {
  ThreadedRun run("time_limit");
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
  EXPECT_NE(outcome.output.find("the Slurm job ends at 20"), std::string::npos) << outcome.output;
  outcome = run_shell("SLURM_JOB_END_TIME=1700000000 " +
                      command_line(program_under_test(), {"train", SmallRun("slurm_time_past").config_path()}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("SLURM_JOB_END_TIME=1700000000 is ignored: it is past"), std::string::npos)
      << outcome.output;
}

// A scheduler gives the command line of a job once more: it was meant for the first start.
TEST(RestartedJob, DoesNotBeginAnewOnceMore) {
  const ThreadedRun run("restarted_job");
  const auto expect = [&](const std::string& part, const std::string& launcher, const std::string& resume, int stop) {
    const std::vector<std::string> arguments = {"train", run.config_path(), "checkpoint.resume=" + resume,
                                                fmt::format("train.stop_at_step={}", stop)};
    const Outcome outcome = run_shell(launcher + command_line(program_under_test(), arguments));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_NE(outcome.output.find(part), std::string::npos) << part << "\n" << outcome.output;
  };
  run.train(1, {"train.stop_at_step=3"});
  expect("begins anew", "SLURM_RESTART_COUNT=1 ", "none", 4);  // the job's first start saved nothing
  expect("begins anew", "SLURM_RESTART_COUNT=0 ", "none", 5);
  expect(" at step 5 ", "SLURM_RESTART_COUNT=1 ", "none", 6);
  expect(" at step 6 ", "MANTISSA_RESTARTED=yes " + mpirun(2), "none", 7);
  const std::string back = run.checkpoint_folder(6);
  expect(" at step 6 ", "", back, 8);
  expect(" at step 8 ", "MANTISSA_RESTARTED=yes ", back, 9);
}

// checkpoint.interval=-1 leaves out the checkpoint of a run that is done, and no other.
TEST(Preemption, OnlyAStoppedRunSavesIfNoIntervalAsksForIt) {
  const ThreadedRun done("never_saved");
  const Outcome outcome = done.train(1, {"checkpoint.interval=-1", "train.steps=3", "optimizer.warmup_steps=0"});
  EXPECT_FALSE(std::filesystem::exists(done.run_dir() + "/checkpoints")) << outcome.output;
  EXPECT_NE(outcome.output.find("the last state is not saved: checkpoint.interval is -1"), std::string::npos)
      << outcome.output;
  EXPECT_EQ(outcome.output.find("checkpoints in "), std::string::npos) << outcome.output;
  const SmallRun stopped("saved_when_stopped");
  const Outcome early = interrupt(stopped, "", "kill -USR1 $job",
                                  {"train.steps=1000000", "train.log_interval=100000", "checkpoint.interval=-1"});
  EXPECT_EQ(early.exit_code, kPreempted) << early.output;
  EXPECT_TRUE(std::filesystem::exists(stopped.run_dir() + "/checkpoints")) << early.output;
}

// Without its lock, a second job could begin in the folder.
TEST(Preemption, ALockThatIsRemovedIsMadeAgain) {
  const std::vector<std::string> settings = {"train.steps=1000000", "train.max_minutes=0.1",
                                             "train.log_interval=100000", "checkpoint.interval=0"};
  const auto count_of = [](const Outcome& outcome, const std::string& part) {
    int count = 0;
    for (size_t at = 0; (at = outcome.output.find(part, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const SmallRun run("lock_removed"), other("lock_taken");
  const std::string lock = run.run_dir() + "/lock", taken = other.run_dir() + "/lock";
  Outcome outcome = interrupt(run, "", fmt::format("rm '{}'; kill -USR1 $job", lock), settings);
  EXPECT_EQ(outcome.exit_code, kPreempted) << outcome.output;
  EXPECT_EQ(count_of(outcome, "somebody removed '" + lock + "' during the run; it is made again"), 1) << outcome.output;
  EXPECT_TRUE(read_file(lock).starts_with("host ")) << outcome.output;

  outcome = interrupt(other, "", fmt::format("rm '{0}'; exec 9>'{0}'; flock 9; kill -USR1 $job", taken), settings);
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  EXPECT_EQ(count_of(outcome, "somebody removed '" + taken + "' during the run, and another job has begun there"), 1)
      << outcome.output;
  EXPECT_EQ(count_of(outcome, "checkpoint saved"), 0) << outcome.output;
}

// Behind the link are the checkpoints of another run.
TEST(Preemption, ALinkMadeDuringTheRunIsNotFollowed) {
  const SmallRun run("linked_during_the_run");
  const std::string other = run.folder() + "/other", checkpoints = run.run_dir() + "/checkpoints";
  std::filesystem::create_directories(other);
  const Outcome outcome =
      interrupt(run, "", fmt::format("rm -rf '{0}'; ln -s '{1}' '{0}'; kill -USR1 $job", checkpoints, other),
                {"train.steps=1000000", "train.max_minutes=0.1", "train.log_interval=100000", "checkpoint.interval=0"});
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  EXPECT_NE(outcome.output.find("is a symbolic link to '"), std::string::npos) << outcome.output;
  EXPECT_TRUE(std::filesystem::is_empty(other)) << outcome.output;
}

}  // namespace
}  // namespace mantissa::testing
