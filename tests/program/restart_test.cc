// Jobs that start again: tools/supervise, and the batch scripts of configs/slurm where Slurm's commands are others.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/program/threaded_run.h"
#include "tests/testing/every_case.h"

namespace mantissa::testing {
namespace {

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

// The output of configs/slurm/requeue.sh for a command. Functions of a shell are the commands of Slurm; nothing sleeps.
std::string requeue_output(const std::string& command, int restarts = 0,
                           const std::string& slurm =
                               "squeue() { echo RUNNING; }; "
                               "scontrol() { echo \"scontrol $*\"; false; }") {
  return run_shell(fmt::format("SLURM_JOB_ID=7 SLURM_RESTART_COUNT={} bash -c '{}; sleep() {{ :; }}; "
                               "source configs/slurm/requeue.sh; run_and_requeue {}'",
                               restarts, slurm, command))
      .output;
}

void write_program(const std::string& path, const std::string& script) {
  write_file(path, "#!/bin/sh\n" + script);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

TEST(Requeue, OnlyATrainingGoesBackToTheQueueAfterAnEarlySignal) {
  const std::string command = fresh_folder("requeued") + "/mantissa";
  const auto output_of = [&](int code, const std::string& verb) {
    write_file(command, fmt::format("exit {}\n", code));
    return requeue_output(fmt::format("sh {} {} a.yaml", command, verb));
  };
  constexpr const char* kRequeue = "scontrol requeue 7";
  EXPECT_NE(output_of(138, "train").find(kRequeue), std::string::npos);
  EXPECT_NE(output_of(75, "train").find(kRequeue), std::string::npos);
  for (const char* const verb : {"compare", "evaluate", "analyze model", "tokenizer train"}) {
    const std::string output = output_of(138, verb);
    EXPECT_NE(output.find("exit code 138"), std::string::npos) << output;
    EXPECT_EQ(output.find(kRequeue), std::string::npos) << output;
  }
}

// Code 0 of a later start: the program, a script, answers as `mantissa config` and `mantissa status` do.
TEST(Requeue, ATrainingWhoseRanksDidNotStartGoesBackToTheQueue) {
  const std::string folder = fresh_folder("not_started"), program = folder + "/mantissa";
  std::string run = folder + "/run", printed = run, command = program;
  const auto is_requeued = [&](int steps, const std::string& status, int code, int stop_at_step = 0) {
    const std::string config =
        fmt::format("train:\n  steps: {}\n  stop_at_step: {}\n  run_dir: {}\noptimizer:\n  warmup_steps: 99\n", steps,
                    stop_at_step, printed);
    write_file(folder + "/config", config);
    write_program(program, fmt::format("case $1 in config) cat {}/config ;; status) echo '{}'; exit {} ;; esac\n",
                                       folder, status, code));
    return requeue_output(command + " train a.yaml", 1).find("goes back to the queue") != std::string::npos;
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
  // YAML quotes such a path.
  run = folder + "/a\\\"b";
  printed = "\"" + folder + "/a\\\\\\\"b\"";
  std::filesystem::create_directories(run);
  write_file(run + "/lock", "");
  EXPECT_FALSE(is_requeued(60, "done: step 60 of 60, loss 5.0902", 0));
  // The program is only within a container.
  write_program(folder + "/apptainer", "shift 2\nPATH=" + folder + ":$PATH \"$@\"\n");
  write_program(folder + "/mpirun", "shift 2\n\"$@\"\n\"$@\"\n");
  for (const std::string launcher : {"", "mpirun -np 2 "}) {
    command = "env -u train " + folder + "/apptainer exec mantissa.sif " + launcher + "mantissa";
    EXPECT_FALSE(is_requeued(60, "done: step 60 of 60, loss 5.0902", 0)) << launcher;
    EXPECT_TRUE(is_requeued(60, "done: step 30 of 30, loss 5.0902", 0)) << launcher;
  }
  write_program(program, "[ $1 = train ]\n");
  const std::string unknown = requeue_output(program + " train a.yaml", 1);
  EXPECT_NE(unknown.find("whether the run is done is not known: `" + program + " config`"), std::string::npos)
      << unknown;
}

// Slurm's controller may be busy.
TEST(Requeue, AsksSlurmAgainAndTellsWhereItDoesNotAnswer) {
  const std::string folder = fresh_folder("busy_slurm");
  const auto output_of = [&](const std::string& squeue, const std::string& scontrol) {
    write_file(folder + "/calls", "");
    const std::string slurm = fmt::format(
        "busy() {{ echo >> {0}/calls; [ $(wc -l < {0}/calls) -gt 2 ]; }}; squeue() {{ {1}; }}; "
        "scontrol() {{ echo \"scontrol $*\"; {2}; }}",
        folder, squeue, scontrol);
    return requeue_output("sh -c \"exit 75\"", 0, slurm);
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

// tools/supervise gets SIGINT once its command, a script of this name, runs. The script begins with `traps`.
Outcome interrupted(const std::string& folder, const std::string& name, const std::string& traps) {
  const std::string command = folder + "/" + name;
  std::filesystem::remove(folder + "/starts");
  write_file(command, fmt::format("#!/bin/sh\n{0}echo >{1}/starts\nsleep 1\ntrap 'exit 75' USR1\n"
                                  "while :; do sleep 0.05; done\n",
                                  traps, folder));
  std::filesystem::permissions(command, std::filesystem::perms::owner_all);
  return run_shell(fmt::format(
      "(env --default-signal=INT {} -- {} & job=$!; while [ ! -s {}/starts ]; do sleep 0.01; done; kill -INT $job; "
      "timeout 20 tail --pid $job -f /dev/null || pkill -9 -P $job; wait $job)",
      kSupervise, command, folder));
}

TEST(Supervise, RepeatsASignalThatMpirunDrops) {
  const Outcome outcome = interrupted(fresh_folder("supervised_dropped"), "mpirun", "trap '' USR1\n");
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
}

// OpenMPI's mpirun crashes where a second signal meets its own end.
TEST(Supervise, SaysWhatACrashOfMpirunIs) {
  const std::string folder = fresh_folder("supervised_crash");
  const auto output_of = [&](const std::string& name) {
    const Outcome outcome = interrupted(folder, name, "trap 'kill -SEGV $$' USR1 TERM\n");
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
