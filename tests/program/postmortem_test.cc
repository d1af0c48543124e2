// Jobs with different ends, and what `mantissa postmortem` says about them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/program/threaded_run.h"
#include "tests/tools/run/unwrapped.h"

namespace mantissa::testing {
namespace {

// Trains without end; after 20 steps, rank 1 gets the signal.
Outcome signal_rank_1(const SmallRun& run, const std::string& signal, const std::vector<std::string>& settings,
                      int ranks = 2) {
  return interrupt(run, mpirun(ranks), "kill -" + signal + " " + rank_1_of("$job"),
                   with({"train.steps=1000000", "train.log_interval=1000"}, settings));
}

std::string postmortem(const SmallRun& run) {
  const Outcome outcome = run_verb({"postmortem", run.run_dir()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return unwrapped(outcome.output);
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n--- in\n" << text;
}

// MPI_Init waits for all ranks without a limit.
TEST(Start, EndsWhereARankDoesNotCome) {
  const SmallRun run("start_alone");
  const std::string train =
      command_line(program_under_test(), {"train", run.config_path(), "watchdog.least_deadline_s=1"});
  for (const char* other : {"true", "sh -c 'kill -STOP $$'"}) {
    const Outcome outcome = run_shell(fmt::format("timeout 120 {}{} : -np 1 {}", mpirun(1), train, other));
    EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
    expect_part(outcome.output, "error: watchdog: no progress for 6 s: rank 0 (node ");
    expect_part(outcome.output, ") starts MPI,\n  which waits for all 2 ranks: one is stopped, has ended, ");
    EXPECT_FALSE(std::filesystem::exists(run.run_dir()));
  }
}

TEST(Start, ClosedStandardFilesAreNoFilesOfTheRun) {
  const SmallRun run("closed_standard_files");  // lines of the log went into its lock
  const std::string train = command_line(program_under_test(), {"train", run.config_path()});
  for (const char* const closed : {"<&- 2>&-", "<&- >&- 2>&-"}) {
    std::filesystem::remove_all(run.run_dir());
    EXPECT_EQ(run_shell(fmt::format("({} {})", train, closed)).exit_code, 0);
    const std::string lock = read_file(run.run_dir() + "/lock");
    EXPECT_TRUE(lock.starts_with("host ") && lock.find('\n') == std::string::npos) << lock;
  }
  const Outcome shown =
      run_shell(fmt::format("({} >&-)", command_line(program_under_test(), {"status", run.run_dir()})));
  EXPECT_NE(shown.output.find("standard output cannot be written to its end"), std::string::npos) << shown.output;
}

// Else the training would be lost at its end.
TEST(Start, IsRefusedWhereItsCheckpointsAreAFile) {
  const ThreadedRun run("checkpoints_file");
  std::filesystem::create_directories(run.run_dir());
  write_file(run.run_dir() + "/checkpoints", "kept");
  const Outcome outcome = run.try_train(1, {});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_NE(unwrapped(outcome.output).find("/checkpoints' (Not a directory): give a folder"), std::string::npos)
      << outcome.output;
  EXPECT_EQ(read_file(run.run_dir() + "/checkpoints"), "kept");
}

// Verbs without a run folder are watched to their end, too.
TEST(Start, AVerbEndsWhereARankStops) {
  const SmallRun run("stopped_verb");
  const std::string compare =
      command_line(program_under_test(), {"compare", run.config_path(), "--precisions", "fp32,bf16", "--steps",
                                          "1000000", "optimizer.warmup_steps=0", "watchdog.least_deadline_s=1"});
  const Outcome outcome =
      run_shell(fmt::format("out={}/out; ({}{} >$out 2>&1 & job=$!; until grep -q ' runs of ' $out; do sleep 0.05; "
                            "kill -0 $job || exit; done; "
                            "sleep 1; kill -STOP {}; timeout 60 tail -s 0.1 --pid $job -n +1 -f $out; wait $job)",
                            run.folder(), mpirun(2), compare, rank_1_of("$job")));
  EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
  expect_part(outcome.output, "error: [rank 0] watchdog: no progress for 6 s: rank 0 (node ");
  expect_part(outcome.output, ") is in a collective,\n  which waits for all 2 ranks: one is stopped, ");
}

// Rank 0 tries formats and products for many seconds, and the other waits for it at the end of MPI.
TEST(Start, AVerbGoesOnWhileRank0WorksAlone) {
  const SmallRun run("work_of_rank_0");
  const std::string json = run.folder() + "/figures.json";
  const Outcome outcome =
      run_program(2, {"compare", run.config_path(), "--precisions", "fp32,bf16", "--steps", "10", "--seeds", "1",
                      "--json", json, "optimizer.warmup_steps=0", "watchdog.least_deadline_s=1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(std::filesystem::exists(json)) << outcome.output;
}

// They have no configuration of a training, but its settings.
TEST(Start, ScoringTakesSettingsOfTheWatchdog) {
  const ThreadedRun run("watched_score");
  run.train(1, {"train.steps=2", "optimizer.warmup_steps=0"});
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"score", run.run_dir(), run.data_path()},
        std::vector<std::string>{"evaluate", run.run_dir(), "--text", run.data_path()}}) {
    const std::string score = command_line(program_under_test(), with(verb, {"watchdog.least_deadline_s=1"}));
    const Outcome outcome = run_shell(fmt::format("timeout 120 {}{} : -np 1 sleep 60", mpirun(1), score));
    EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
    expect_part(outcome.output, "error: watchdog: no progress for 6 s: rank 0 (node ");
  }
}

TEST(Postmortem, RunThatIsDone) {
  const ThreadedRun run("postmortem_done");
  run.train(2, {"train.steps=6"});
  const std::string text = postmortem(run);
  EXPECT_EQ(text.find("done: exit code 0 lost: no step, the last checkpoint is of step 6 "), 0u) << text;
  expect_part(text, "step 6: the end of phase checkpoint");
}

TEST(Postmortem, StartThatFails) {
  const ThreadedRun run("postmortem_refused");
  EXPECT_EQ(run.try_train(1, {"train.max_minutes=0.001"}).exit_code, 75);
  EXPECT_EQ(run.try_train(1, {"data.train=[/no/such/file]"}).exit_code, 3);
  const std::string text = postmortem(run);
  EXPECT_EQ(text.find("rank 0 failed at the start: "), 0u) << text;
  expect_part(text, "/no/such/file");
}

TEST(Postmortem, RankThatIsKilled) {
  const SmallRun run("postmortem_killed");
  const Outcome outcome = signal_rank_1(run, "KILL", {"checkpoint.interval=100000"});
  EXPECT_EQ(outcome.exit_code, 137) << outcome.output;
  const std::string text = postmortem(run);
  EXPECT_EQ(text.find("the job ended at step "), 0u) << text;
  expect_part(text, ": rank 1 (node ");
  expect_part(text, ") was killed (no end mark) ");
  expect_part(text, "before the last sign of life of the others");
  expect_part(text, " steps, there is no checkpoint (");
}

TEST(Postmortem, RankThatIsStopped) {
  const SmallRun run("postmortem_stopped");
  const Outcome outcome = signal_rank_1(run, "STOP", {"watchdog.deadline_s=3"});
  EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
  const std::string text = postmortem(run);
  EXPECT_EQ(text.find("the job ended at step "), 0u) << text;
  expect_part(text, ": rank 1 (node ");
  expect_part(text, ") stopped answering ");
  expect_part(text, "; rank 0 waited for it in collective ");
  expect_part(text, "watchdog: no progress for ");
  expect_part(text, "stacks of rank 0: ");
}

TEST(Postmortem, RankOfThreeThatIsStopped) {
  const SmallRun run("postmortem_stopped_of_three");
  const Outcome outcome = signal_rank_1(run, "STOP", {"watchdog.deadline_s=3"}, 3);
  EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
  const std::string text = postmortem(run);
  expect_part(text, ": rank 1 (node ");
  expect_part(text, ") stopped answering ");
  expect_part(text, " waited for it in collective ");
}

TEST(Postmortem, RunGoesOnWhenItsBlackBoxIsTruncated) {
  const SmallRun run("postmortem_truncated");
  const std::string box = run.run_dir() + "/black_box/rank-0000.box";
  const Outcome outcome = interrupt(run, "", "truncate -s 0 '" + box + "'; sleep 0.5; kill -USR1 $job",
                                    {"train.steps=1000000", "train.log_interval=1000"});
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  expect_part(unwrapped(outcome.output),
              "rank-0000.box' was removed, replaced or truncated, or its file system lost it; training goes on");
}

}  // namespace
}  // namespace mantissa::testing
