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

// ---- tools/supervise.

TEST(Supervise, Help) {
  const Outcome help = run_shell("tools/supervise --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_TRUE(help.output.starts_with("Starts a command again when")) << help.output;
  EXPECT_TRUE(help.output.ends_with("The exit code is the last one of the command.\n")) << help.output;
}

constexpr const char* kSupervise = "tools/supervise --wait 0.1 ";

// A command that ends with these codes in turn, and then with 0. It counts its starts in a file.
std::string command_with_codes(const std::string& folder, const std::vector<int>& codes) {
  std::string script = "echo >> " + folder + "/starts\ncase $(wc -l < " + folder + "/starts) in\n";
  for (size_t i = 0; i < codes.size(); ++i) {
    script += fmt::format("{}) {} ;;\n", i + 1,
                          codes[i] == 137 || codes[i] == 139 ? fmt::format("kill -{} $$", codes[i] - 128)
                                                             : fmt::format("exit {}", codes[i]));
  }
  write_file(folder + "/command.sh", script + "esac\n");
  return "-- sh " + folder + "/command.sh";
}

int64_t starts_in(const std::string& folder) {
  const std::string starts = read_file(folder + "/starts");
  return std::count(starts.begin(), starts.end(), '\n');
}

TEST(Supervise, RestartsOnlyWhereThatHelps) {
  struct Row {
    int code;
    std::string options;
    int64_t starts;
  };
  for (const Row& row : {Row{6, "", 2},
                         Row{7, "", 2},
                         Row{8, "", 2},
                         Row{137, "", 2},
                         Row{139, "", 2},
                         Row{134, "", 2},
                         Row{205, "", 2},
                         Row{75, "--preempted ", 2},
                         Row{138, "--preempted ", 2},
                         Row{143, "--preempted ", 2},
                         Row{1, "--also 3,1 ", 2},
                         Row{0, "", 1},
                         Row{1, "", 1},
                         Row{2, "", 1},
                         Row{3, "", 1},
                         Row{4, "", 1},
                         Row{5, "", 1},
                         Row{75, "", 1},
                         Row{127, "", 1},
                         Row{138, "", 1},
                         Row{143, "", 1},
                         Row{130, "", 1},
                         Row{129, "", 1},
                         Row{213, "", 1}}) {
    SCOPED_TRACE(row.code);
    const std::string folder = fresh_folder("supervised");
    const Outcome outcome = run_shell(kSupervise + row.options + command_with_codes(folder, {row.code}));
    EXPECT_EQ(outcome.exit_code, row.starts == 2 ? 0 : row.code) << outcome.output;
    EXPECT_EQ(starts_in(folder), row.starts) << outcome.output;
  }
}

// configs/slurm/requeue.sh. The commands of Slurm do nothing but print their arguments.
TEST(Requeue, OnlyATrainingGoesBackToTheQueueAfterAnEarlySignal) {
  const std::string command = fresh_folder("requeued") + "/mantissa";
  const auto output_of = [&](int code, const std::string& verb) {
    write_file(command, fmt::format("exit {}\n", code));
    return run_shell(
               fmt::format(
                   "SLURM_JOB_ID=7 bash -c 'squeue() {{ echo RUNNING; }}; scontrol() {{ echo \"scontrol $*\"; "
                   "false; }}; sleep() {{ :; }}; source configs/slurm/requeue.sh; run_and_requeue sh {} {} a.yaml'",
                   command, verb))
        .output;
  };
  constexpr const char* kRequeue = "scontrol requeue 7";
  EXPECT_NE(output_of(138, "train").find(kRequeue), std::string::npos);
  EXPECT_NE(output_of(75, "train").find(kRequeue), std::string::npos);
  for (const char* const verb : {"compare", "evaluate", "analyze model"}) {
    const std::string output = output_of(138, verb);
    EXPECT_NE(output.find("exit code 138"), std::string::npos) << output;
    EXPECT_EQ(output.find(kRequeue), std::string::npos) << output;
  }
}

// Code 0 of a later start: the program, a script, answers as `mantissa config` and `mantissa status` do.
TEST(Requeue, ATrainingWhoseRanksDidNotStartGoesBackToTheQueue) {
  const std::string folder = fresh_folder("not_started"), command = folder + "/mantissa", run = folder + "/run";
  const auto is_requeued = [&](int steps, const std::string& status, int code, int stop_at_step = 0) {
    const std::string config =
        fmt::format("train:\n  steps: {}\n  stop_at_step: {}\n  run_dir: {}\noptimizer:\n  warmup_steps: 99\n", steps,
                    stop_at_step, run);
    write_file(folder + "/config", config);
    write_file(command,
               fmt::format("#!/bin/sh\ncase $1 in config) cat {}/config ;; status) echo '{}'; exit {} ;; esac\n",
                           folder, status, code));
    std::filesystem::permissions(command, std::filesystem::perms::owner_all);
    const std::string output =
        run_shell(fmt::format("SLURM_JOB_ID=7 SLURM_RESTART_COUNT=1 bash -c 'squeue() {{ echo RUNNING; }}; "
                              "scontrol() {{ echo \"scontrol $*\"; false; }}; sleep() {{ :; }}; "
                              "source configs/slurm/requeue.sh; run_and_requeue {} train a.yaml'",
                              command))
            .output;
    return output.find("goes back to the queue") != std::string::npos;
  };
  EXPECT_TRUE(is_requeued(60, "no folder", 2));
  std::filesystem::create_directories(run);
  EXPECT_TRUE(is_requeued(60, "no run folder", 2));
  write_file(run + "/lock", "");
  for (const int code : {10, 11, 12, 75}) EXPECT_TRUE(is_requeued(60, "running: step 30 of 60", code)) << code;
  EXPECT_TRUE(is_requeued(60, "done: step 30 of 30, loss 5.0902", 0));
  EXPECT_FALSE(is_requeued(60, "done: step 60 of 60, loss 5.0902", 0));
  EXPECT_FALSE(is_requeued(60, "done: step 30 of 30, loss 5.0902", 0, 30));
  EXPECT_FALSE(is_requeued(60, "damaged", 2));
}

// Slurm's controller may be busy.
TEST(Requeue, AsksSlurmAgainAndTellsWhereItDoesNotAnswer) {
  const std::string folder = fresh_folder("busy_slurm");
  const auto output_of = [&](const std::string& squeue, const std::string& scontrol) {
    write_file(folder + "/calls", "");
    return run_shell(fmt::format("SLURM_JOB_ID=7 bash -c 'busy() {{ echo >> {0}/calls; [ $(wc -l < {0}/calls) -gt 2 ]; "
                                 "}}; squeue() {{ {1}; }}; scontrol() {{ echo \"scontrol $*\"; {2}; }}; "
                                 "sleep() {{ :; }}; source configs/slurm/requeue.sh; "
                                 "run_and_requeue sh -c \"exit 75\"'",
                                 folder, squeue, scontrol))
        .output;
  };
  constexpr const char* kNot = "job 7 is not requeued, since Slurm did not answer; to continue: scontrol requeue 7";
  EXPECT_NE(output_of("false", "false").find(kNot), std::string::npos);
  const std::string late = output_of("busy && echo RUNNING", "false");
  EXPECT_NE(late.find("\nscontrol requeue 7"), std::string::npos) << late;
  EXPECT_NE(late.find(kNot), std::string::npos) << late;
  EXPECT_EQ(output_of("echo COMPLETING", "false").find("scontrol requeue"), std::string::npos);
}

TEST(Supervise, RefusesWhatIsNoListOfExitCodes) {
  for (const char* const codes : {"1x", "0", "256", "1,", ",1", "01", "1 3"}) {
    const Outcome outcome = run_shell(fmt::format("{}--also '{}' -- true", kSupervise, codes));
    EXPECT_EQ(outcome.exit_code, 2) << codes;
    EXPECT_NE(
        outcome.output.find(fmt::format("--also: expected exit codes from 1 to 255, such as 1,3, got '{}'", codes)),
        std::string::npos)
        << outcome.output;
  }
}

TEST(Supervise, TellsARestartFromTheFirstStart) {
  const std::string starts = fresh_folder("supervised_restart") + "/starts";
  const std::string command =
      fmt::format(R"(echo "${{MANTISSA_RESTARTED:-no}}" >>{0}; [ $(wc -l <{0}) -gt 2 ] || exit 6)", starts);
  EXPECT_EQ(run_shell(fmt::format("{}--run {} -- sh -c '{}'", kSupervise, starts, command)).exit_code, 0);
  EXPECT_EQ(read_file(starts), "no\nyes\nyes\n");
}

TEST(Supervise, GivesUpAfterRestartsWithoutACheckpoint) {
  const std::string folder = fresh_folder("supervised_bound");
  const std::string options = kSupervise + fmt::format("--restarts 2 --run {} ", folder);
  Outcome outcome = run_shell(options + command_with_codes(folder, {6, 6, 7, 6}));
  EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
  EXPECT_EQ(starts_in(folder), 3);
  EXPECT_NE(outcome.output.find("exit code 6, last checkpoint of step 0: restart 1 of 2 in 0.1 s"), std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("exit code 7: given up after 2 restarts without a newer checkpoint"), std::string::npos)
      << outcome.output;

  // Each start leaves a newer checkpoint; folders that are being written or removed do not count.
  const std::string saving = fresh_folder("supervised_saving");
  const std::string command = command_with_codes(saving, {6, 6, 6, 6, 6, 6});
  const std::string script = read_file(saving + "/command.sh");
  const size_t line = script.find('\n') + 1;
  write_file(saving + "/command.sh",
             script.substr(0, line) +
                 fmt::format("new={0}/checkpoints/step-000000$(wc -l < {0}/starts)9; mkdir -p $new $new.partial\n"
                             "touch $new/manifest.json $new.partial/manifest.json\n",
                             saving) +
                 script.substr(line));
  outcome = run_shell(kSupervise + fmt::format("--restarts 1 --run {} ", saving) + command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(starts_in(saving), 7);
}

TEST(Supervise, PassesSignalsOnAndDoesNotRestart) {
  const std::string folder = fresh_folder("supervised_signal");
  write_file(folder + "/command.sh",
             "echo >> " + folder + "/starts\ntrap 'exit 75' TERM\nwhile :; do sleep 0.05; done\n");
  for (const std::string name : {"TERM", "INT", "HUP"}) {
    std::filesystem::remove(folder + "/starts");
    const Outcome outcome = run_shell(fmt::format(
        "(env --default-signal=INT {} --preempted -- sh {}/command.sh & job=$!; while [ ! -s {}/starts ]; do sleep "
        "0.01; done; kill -{} $job; wait $job)",
        kSupervise, folder, folder, name));
    EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
    EXPECT_EQ(starts_in(folder), 1) << outcome.output;
  }
  // While it waits for a restart, too.
  std::filesystem::remove(folder + "/starts");
  const Outcome outcome =
      run_shell(fmt::format("(tools/supervise --wait 60 {} & job=$!; while [ ! -s {}/starts ]; do sleep 0.01; done; "
                            "sleep 0.2; kill $job; wait "
                            "$job)",
                            command_with_codes(folder, {6, 6}), folder));
  EXPECT_EQ(outcome.exit_code, 6) << outcome.output;
  EXPECT_EQ(starts_in(folder), 1) << outcome.output;
}

// A scheduler may send a signal to a process and to its group. mpirun kills its ranks upon SIGTERM, while they save.
TEST(Supervise, TwoSignalsAtOnceAreOne) {
  const std::string folder = fresh_folder("supervised_twice");
  write_file(folder + "/mpirun",
             "#!/bin/sh\ntrap 'saving=yes' USR1\ntrap 'exit 1' TERM\necho >" + folder +
                 "/starts\ntenths=0\nwhile [ $tenths -lt $1 ]; do\n  sleep 0.1\n  [ -z \"$saving\" ] "
                 "|| tenths=$((tenths + 1))\ndone\nexit 75\n");
  std::filesystem::permissions(folder + "/mpirun", std::filesystem::perms::owner_all);
  const auto exit_code_after = [&](const std::string& name, const std::string& pause, int tenths) {
    std::filesystem::remove(folder + "/starts");
    return run_shell(fmt::format("(env --default-signal=INT {} -- {}/mpirun {} & job=$!; while [ ! -s {}/starts ]; do "
                                 "sleep 0.01; done; kill -{} $job; sleep {}; kill -{} $job; wait $job)",
                                 kSupervise, folder, tenths, folder, name, pause, name))
        .exit_code;
  };
  EXPECT_EQ(exit_code_after("TERM", "0.3", 10), 75);
  EXPECT_EQ(exit_code_after("HUP", "0.3", 10), 75);
  EXPECT_EQ(exit_code_after("INT", "0.3", 100), 1) << "a second Ctrl-C ends it at once";
  EXPECT_EQ(exit_code_after("TERM", "5", 100), 1) << "somebody has no more patience";
}

TEST(Supervise, RepeatsASignalThatMpirunDrops) {
  const std::string folder = fresh_folder("supervised_dropped"), command = folder + "/mpirun";
  write_file(command, "#!/bin/sh\ntrap '' USR1\necho >" + folder +
                          "/starts\nsleep 1\ntrap 'exit 75' USR1\nwhile :; do sleep 0.05; done\n");
  std::filesystem::permissions(command, std::filesystem::perms::owner_all);
  const Outcome outcome = run_shell(fmt::format(
      "(env --default-signal=INT {} -- {} & job=$!; while [ ! -s {}/starts ]; do sleep 0.01; done; kill -INT $job; "
      "timeout 20 tail --pid $job -f /dev/null || pkill -9 -P $job; wait $job)",
      kSupervise, command, folder));
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
}

// OpenMPI's mpirun crashes where a second signal meets its own end.
TEST(Supervise, SaysWhatACrashOfMpirunIs) {
  const std::string folder = fresh_folder("supervised_crash");
  const auto output_of = [&](const std::string& name) {
    std::filesystem::remove(folder + "/starts");
    const std::string command = folder + "/" + name;
    write_file(command, "#!/bin/sh\ntrap 'kill -SEGV $$' USR1 TERM\necho >" + folder +
                            "/starts\nwhile :; do sleep 0.05; done\n");
    std::filesystem::permissions(command, std::filesystem::perms::owner_all);
    const Outcome outcome = run_shell(fmt::format(
        "(env --default-signal=INT {} -- {} & job=$!; while [ ! -s {}/starts ]; do sleep 0.01; done; kill -INT $job; "
        "wait $job)",
        kSupervise, command, folder));
    EXPECT_EQ(outcome.exit_code, 139) << outcome.output;
    return outcome.output;
  };
  EXPECT_NE(output_of("mpirun").find("139 after a signal: no restart: mpirun crashed while it ended the job (SIGSEGV)"),
            std::string::npos);
  EXPECT_EQ(output_of("mantissa").find("mpirun crashed"), std::string::npos);
}

TEST(Supervise, ARunWhoseRankIsKilledGoesOnToTheSameBits) {
  ThreadedRun whole("supervised_whole");
  const std::vector<std::string> settings = {"train.steps=120", "train.log_interval=100", "checkpoint.interval=15"};
  whole.train(2, settings);
  SmallRun run("supervised_run");
  const std::string kill = "kill -9 " + rank_1_of("$(pgrep -P $job mpirun)");
  const Outcome outcome = interrupt(run, kSupervise + std::string("-- ") + mpirun(2), kill, settings);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("supervise: "), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("restart 1 of 5 in 0.1 s"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("the run folder is not known"), std::string::npos) << outcome.output;
  EXPECT_EQ(run.hashes(120), whole.hashes(120));
}

}  // namespace
}  // namespace mantissa::testing
