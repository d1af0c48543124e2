// Files for those who watch a run: run.log and metrics.prom; and `mantissa status`.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <regex>
#include <sstream>

#include "tests/program/threaded_run.h"
#include "tests/tools/run/unwrapped.h"

namespace mantissa::testing {
namespace {

size_t count_of(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<size_t>(
      std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator()));
}

Outcome status(const SmallRun& run) { return run_verb({"status", run.run_dir()}); }

std::string log_of(const SmallRun& run) { return read_file(run.run_dir() + "/run.log"); }
std::string prom_of(const SmallRun& run) { return read_file(run.run_dir() + "/metrics.prom"); }

const std::string kLine = "\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\.\\d{3} \\S+ ";

TEST(RunStatusOfARun, ADoneRunHasALogOfEachStartAndItsFigures) {
  const SmallRun run("status_done");
  const std::vector<std::string> settings = {"train.eval_interval=10", "optimizer.clip.window=3"};
  const Outcome first = run.train(1, with(settings, {"train.stop_at_step=5"}));
  EXPECT_EQ(status(run).exit_code, 0);
  const Outcome second = run.train(1, settings);
  const std::string log = log_of(run);
  EXPECT_EQ(count_of(log, kLine + "start: mantissa \\S+ \\(commit \\S+\\) train, 1 rank\n"), 2u) << log;
  EXPECT_EQ(count_of(log, kLine + "warning: optimizer.clip.window = 3"), 2u) << log;  // logged before the file opened
  EXPECT_EQ(count_of(log, kLine + "step \\d+/20 \\| loss "), 20u) << log;
  EXPECT_EQ(count_of(log, kLine + "step 1/20 [^\n]* tok/s \\| \\d\\d:\\d\\d\n"), 1u) << log;  // without an estimate
  EXPECT_EQ(count_of(log, kLine + "step 3/20 [^\n]* \\| \\d\\d:\\d\\d, ends (\\w+ \\d\\d )?\\d\\d:\\d\\d\n"), 1u)
      << log;
  EXPECT_EQ(count_of(log, kLine + "statistics:\n  steps "), 2u) << log;
  // Standard error is as it was: without times, and without the line of the start.
  EXPECT_EQ(count_of(first.output + second.output, kLine), 0u);
  EXPECT_EQ(first.output.find("start: "), std::string::npos);

  const std::string prom = prom_of(run);
  const std::string path = std::filesystem::path(run.run_dir()).lexically_normal();
  const std::string label = "\\{run=\"" + path + "\"\\} ";
  EXPECT_EQ(count_of(prom, "\nmantissa_step" + label + "20\n"), 1u) << prom;
  EXPECT_EQ(count_of(prom, "\nmantissa_steps_total" + label + "20\n"), 1u) << prom;
  EXPECT_EQ(count_of(prom, "\nmantissa_last_checkpoint_step" + label + "20\n"), 1u) << prom;
  EXPECT_EQ(count_of(prom, "\nmantissa_warnings_total" + label + "1\n"), 1u) << prom;
  for (const char* name : {"loss", "validation_loss", "gradient_norm", "learning_rate", "loss_scale",
                           "tokens_per_second", "step_seconds", "memory_bytes"}) {
    EXPECT_EQ(count_of(prom, fmt::format("\nmantissa_{}{}[0-9.e-]+\n", name, label)), 1u) << name << "\n" << prom;
  }
  const Outcome shown = run_program(1, {"status", run.run_dir()});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_TRUE(shown.output.starts_with("done: step 20 of 20, loss ")) << shown.output;
  EXPECT_LE(count_of(second.output, "memory"), 3u) << second.output;  // of the table of every category, no line
  EXPECT_EQ(count_of(second.output, "\n {2}activations"), 0u) << second.output;
  // The lines of the console are in the log as well.
  std::istringstream lines(second.output);
  for (std::string line; std::getline(lines, line);) {
    const std::string text = line.starts_with("warning: ") ? line.substr(9) : line;
    EXPECT_NE(log.find(text + "\n"), std::string::npos) << line;
  }
  EXPECT_NE(shown.output.find("last checkpoint: step 20, "), std::string::npos) << shown.output;
  EXPECT_NE(shown.output.find("warnings: 1\n"), std::string::npos) << shown.output;  // of the last start
}

// A run that begins in a checkpoint of another run: with missing data, and with no step left.
TEST(RunStatusOfARun, ARunFromAFinishedOneNamesNoCheckpointOfItsOwn) {
  const ThreadedRun finished("source");
  finished.train(1, {"train.steps=10"});
  for (const int ranks : {1, 2}) {
    const ThreadedRun run("next");
    const std::vector<std::string> settings = {"train.steps=10", "checkpoint.resume=" + finished.run_dir()};
    EXPECT_EQ(run.try_train(ranks, {settings[0], settings[1], "data.train=[/no/such/file]"}).exit_code, 3);
    EXPECT_FALSE(std::filesystem::exists(run.run_dir())) << ranks;
    const Outcome ended = run.train(ranks, settings);
    EXPECT_NE(ended.output.find("nothing was saved, since no step was left: "), std::string::npos) << ended.output;
    EXPECT_EQ(ended.output.find("to generate: "), std::string::npos) << ended.output;
  }
}

// Its own commands for what comes next, as they stand in the output, run.
TEST(RunStatusOfARun, AFinishedRunSaysWhatComesNext) {
  const SmallRun run("finished");
  const auto command = [](const std::string& purpose, const std::string& output) {
    const size_t begin = output.find(purpose) + purpose.size();
    return output.substr(begin, output.find('\n', begin) - begin);
  };
  const auto alone = [&](const std::vector<std::string>& settings) {
    return run_verb(with({"train", run.config_path()}, settings));
  };
  for (const int ranks : {1, 2}) {
    const std::vector<std::string> settings = {fmt::format("train.steps={}", 10 * ranks)};
    const Outcome first = run.train(ranks, settings);
    const std::string generate = command("\nto generate: ", first.output);
    EXPECT_EQ(run_shell(generate + " --tokens 5").exit_code, 0) << generate;
    const std::string resume = command("\nto continue: ", first.output);
    EXPECT_TRUE(resume.ends_with(fmt::format("/config.yaml train.steps={}", 20 * ranks))) << resume;
    const std::string launcher = geteuid() == 0 ? "mpirun -np 2 --allow-run-as-root " : "mpirun -np 2 ";
    EXPECT_EQ(resume.starts_with(launcher), ranks == 2) << resume;

    const std::string before = read_file(run.run_dir() + "/metrics.jsonl");
    const Outcome again = run.train(ranks, settings);
    EXPECT_NE(again.output.find(fmt::format("already finished: {0} of {0} steps in ", 10 * ranks)), std::string::npos)
        << again.output;
    EXPECT_NE(again.output.find("give a larger train.steps to go on"), std::string::npos) << again.output;
    EXPECT_EQ(command("\nto continue: ", again.output), resume);
    EXPECT_LE(count_of(again.output, "\n"), 6u) << again.output;
    EXPECT_EQ(read_file(run.run_dir() + "/metrics.jsonl"), before);
    EXPECT_EQ(status(run).exit_code, 0) << status(run).output;
  }
  EXPECT_EQ(alone({"train.steps=20", "train.threads=1"}).output.find("not used"), std::string::npos);
  const Outcome unused = alone({"train.steps=20", "probe.enabled=true", "train.sample_tokens=7"});
  EXPECT_NE(unused.output.find("not used, because no step is left (saved -> now):\n"
                               "  probe.enabled: false -> true\n  train.sample_tokens: "),
            std::string::npos)
      << unused.output;
  // No step is made with another rate: the kept settings and the metrics stay as the steps left them.
  const std::string kept = read_file(run.run_dir() + "/config.yaml"),
                    metrics = read_file(run.run_dir() + "/metrics.jsonl");
  const Outcome rate = run.train(2, {"train.steps=20", "optimizer.lr=1e-3"});
  EXPECT_NE(rate.output.find("(saved -> now):\n  optimizer.lr: 0.003 -> 0.001\n"), std::string::npos) << rate.output;
  EXPECT_NE(rate.output.find("already finished"), std::string::npos) << rate.output;
  EXPECT_EQ(read_file(run.run_dir() + "/config.yaml"), kept);
  EXPECT_EQ(read_file(run.run_dir() + "/metrics.jsonl"), metrics);
  // Other settings make it another training: the answer is as for a start that would go on.
  EXPECT_EQ(alone({"train.steps=20", "optimizer.weight_decay=0.5"}).exit_code, 2);
  const SmallRun stopped("finished_early");
  EXPECT_EQ(run_verb({"train", stopped.config_path(), "train.steps=30", "train.stop_at_step=20"}).exit_code, 0);
  const Outcome early = stopped.train(1, {"train.steps=30", "train.stop_at_step=20"});
  EXPECT_NE(early.output.find("already finished: 20 of 30 steps in "), std::string::npos) << early.output;
  const Outcome kept_stop = run_verb({"train", stopped.run_dir(), "train.steps=40"});
  const std::string why = unwrapped(kept_stop.output);
  EXPECT_NE(why.find("already finished: 20 of 40 steps in "), std::string::npos) << why;
  EXPECT_NE(why.find(", because train.stop_at_step = 20 (" + stopped.run_dir() + "/config.yaml:"), std::string::npos)
      << why;
  const std::string longer = command("\nto continue: ", early.output);
  EXPECT_TRUE(longer.ends_with("/config.yaml train.stop_at_step=0")) << longer;
  EXPECT_EQ(run_shell(longer).exit_code, 0) << longer;
  EXPECT_TRUE(stopped.has_checkpoint(30));
}

// Where the last step is saved and the end is not reached, a start ends the run, and compares no memory.
TEST(RunStatusOfARun, ARunThatWasKilledBehindItsLastStepEnds) {
  const ThreadedRun run("killed_at_end");
  run.train(1, {"train.steps=10"});
  std::filesystem::remove(run.run_dir() + "/metrics.prom");
  const Outcome outcome = run.train(1, {"train.steps=10"});
  EXPECT_EQ(outcome.output.find("already finished"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("by prediction"), std::string::npos) << outcome.output;
  EXPECT_EQ(status(run).exit_code, 0);
}

TEST(RunStatusOfARun, ARunWithoutItsCheckpointsSaysThatItBeginsAnew) {
  const ThreadedRun run("lost_checkpoints");
  EXPECT_EQ(run.train(1, {"train.stop_at_step=6"}).output.find("begins anew"), std::string::npos);
  std::filesystem::remove_all(run.run_dir() + "/checkpoints");
  const std::string output = unwrapped(run.train(1, {"train.stop_at_step=7"}).output);
  EXPECT_NE(output.find(" has done 6 steps by metrics.prom, but holds no checkpoint: training begins anew"),
            std::string::npos)
      << output;
}

TEST(RunStatusOfARun, EveryRankWritesItsWarnings) {
  const SmallRun run("status_ranks");
  // Each rank warns that there is no time for a checkpoint.
  EXPECT_EQ(run.try_train(2, {"train.max_minutes=0.001"}).exit_code, 75);
  const std::string log = log_of(run);
  EXPECT_TRUE(std::regex_search(log, std::regex("^" + kLine + "start: mantissa [^\n]* train, 2 ranks\n"))) << log;
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(count_of(log, kLine + fmt::format("\\[rank {}\\] warning: train.max_minutes leaves no time", rank)), 1u)
        << log;
  }
  EXPECT_EQ(count_of(log, kLine + "step 1/20 "), 1u) << log;
  const Outcome shown = status(run);
  EXPECT_EQ(shown.exit_code, 75) << shown.output;
  EXPECT_TRUE(shown.output.starts_with("stopped: step 1 of 20")) << shown.output;
  const size_t warnings = count_of(log, kLine + "\\[rank \\d\\] warning: ");
  EXPECT_NE(shown.output.find(fmt::format("warnings: {}\n", warnings)), std::string::npos) << shown.output;
}

TEST(RunStatusOfARun, ARunningRunAndAKilledOne) {
  const SmallRun run("status_killed");
  const std::string train =
      command_line(program_under_test(), {"train", run.config_path(), "train.steps=1000000", "checkpoint.interval=10"});
  const std::string look = command_line(program_under_test(), {"status", run.run_dir()});
  const std::string begun = fmt::format("grep -qs '\"step\":20,' '{}/metrics.jsonl'", run.run_dir());
  // The status of the run as it runs, then of the killed run.
  const Outcome outcome = run_shell(
      fmt::format("({} >/dev/null 2>&1 & job=$!; until {} || ! kill -0 $job; do sleep 0.01; done; {}; echo code $?; "
                  "kill -9 $job; wait $job 2>/dev/null; {}; echo code $?)",
                  train, begun, look, look));
  EXPECT_TRUE(std::regex_search(outcome.output, std::regex("^running: step \\d+ of 1000000"))) << outcome.output;
  EXPECT_TRUE(std::regex_search(
      outcome.output,
      std::regex("\ncode 10\n(.*\n)?dead: step \\d+ of 1000000[^\n]*; no job holds the folder; the same command "
                 "continues\n")))
      << outcome.output;
  EXPECT_TRUE(outcome.output.ends_with(fmt::format("why: tools/mantissa_cpu postmortem {}\ncode 12\n", run.run_dir())))
      << outcome.output;
}

TEST(RunStatusOfARun, AFaultIsAFailure) {
  ThreadedRun run("status_fault");
  run.with_yaml(R"(
faults: {max_consecutive: 1}
test:
  activations:
    - {step: 2, rank: 0, layer: "", op: cross_entropy, value: nan}
)");
  EXPECT_EQ(run.try_train(1, {}).exit_code, 5);
  EXPECT_NE(prom_of(run).find("\"} NaN\n"), std::string::npos) << prom_of(run);
  const Outcome shown = status(run);
  EXPECT_EQ(shown.exit_code, 12) << shown.output;
  EXPECT_TRUE(shown.output.starts_with("failed: step 2 of 20, loss nan")) << shown.output;
  EXPECT_NE(shown.output.find(" error: stopped after 1 fault in a row"), std::string::npos) << shown.output;
}

TEST(RunStatusOfARun, AStartThatFailsIsAFailureWithItsMessage) {
  const ThreadedRun run("status_refused_start");
  EXPECT_EQ(run.try_train(1, {"train.max_minutes=0.001"}).exit_code, 75);
  EXPECT_EQ(run.try_train(2, {"data.train=[/no/such/file]"}).exit_code, 3);
  const Outcome later = status(run);
  EXPECT_TRUE(later.output.starts_with("failed: at the start, after step 1 of 20\n")) << later.output;
  EXPECT_NE(later.output.find("error: data.train: /no/such/file"), std::string::npos) << later.output;
}

TEST(RunStatusOfARun, ARefusedStartLeavesADoneRunDone) {
  const ThreadedRun run("status_stays_done");
  run.train(1, {"train.steps=6"});
  const std::vector<std::pair<std::vector<std::string>, int>> starts = {
      {{"train.steps=8", "data.train=[/no/such/file]"}, 3},
      {{"train.steps=8", "optimizer.weight_decay=0.5"}, 2},
      {{"train.steps=5"}, 2},
      {{"train.steps=6"}, 0}};
  for (const int ranks : {1, 2}) {
    for (const auto& [settings, exit_code] : starts) {
      EXPECT_EQ(run.try_train(ranks, settings).exit_code, exit_code) << settings[0];
      const Outcome later = status(run);
      EXPECT_TRUE(later.output.starts_with("done: step 6 of 6, ")) << settings[0] << "\n" << later.output;
    }
  }
  run.train(1, {"train.steps=8"});
  EXPECT_TRUE(status(run).output.starts_with("done: step 8 of 8, "));
  const std::string copy = run.folder() + "/copy";
  std::filesystem::copy(run.run_dir(), copy, std::filesystem::copy_options::recursive);  // with a lock of now
  EXPECT_TRUE(run_verb({"status", copy}).output.starts_with("done: step 8 of 8, "));
}

TEST(RunStatusOfARun, FilesThatCannotBeWrittenDoNotStopIt) {
  const ThreadedRun run("status_refused");
  for (const char* name : {"/run.log", "/metrics.prom"}) std::filesystem::create_directories(run.run_dir() + name);
  const Outcome outcome = run.train(1, {});
  EXPECT_EQ(count_of(outcome.output, "warning: the log cannot be written to "), 1u) << outcome.output;
  EXPECT_EQ(count_of(outcome.output, "warning: [^\n]*/metrics.prom cannot be written: "), 1u) << outcome.output;
}

// A model that knows nothing yet writes any bytes; grep would take a log with them for a binary file.
TEST(RunStatusOfARun, ASampleIsText) {
  const ThreadedRun run("status_sample");
  const Outcome outcome =
      run.train(1, {"train.steps=1", "optimizer.warmup_steps=0", "train.sample_tokens=60", "train.sample_prompt=ab"});
  const size_t sample = outcome.output.find("sample after \"ab\":\n");
  ASSERT_NE(sample, std::string::npos) << outcome.output;
  EXPECT_GT(count_of(outcome.output.substr(sample), R"(\\x[89a-f][0-9a-f])"), 0u) << outcome.output;
  EXPECT_EQ(run_shell("grep -c 'sample after' " + run.run_dir() + "/run.log").output, "1\n");
}

TEST(RunStatusOfARun, SaysOnceWhatASamplePromptLoses) {
  const ThreadedRun run("status_long_prompt");
  const Outcome outcome = run.train(1, {"train.steps=2", "optimizer.warmup_steps=0", "train.sample_tokens=2",
                                        "train.sample_interval=1", "train.sample_prompt=" + std::string(40, 'a')});
  EXPECT_EQ(count_of(outcome.output, "train.sample_prompt: it has 40 tokens, and the model's context 32: 8 tokens"), 1u)
      << outcome.output;
}

// A start that is refused leaves the files of the last start as they were.
TEST(RunStatusOfARun, ARefusedStartChangesNothing) {
  const ThreadedRun run("status_unchanged");
  run.train(1, {"train.stop_at_step=5"});
  const std::vector<std::string> names = {"/run.log", "/metrics.prom", "/metrics.jsonl", "/config.yaml"};
  std::vector<std::string> before;
  for (const std::string& name : names) before.push_back(read_file(run.run_dir() + name));
  const Outcome refused = run.try_train(1, {"model.width=16"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_NE(refused.output.find("model.width: 32 -> 16"), std::string::npos) << refused.output;
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(read_file(run.run_dir() + names[i]), before[i]) << names[i];
  EXPECT_TRUE(status(run).output.starts_with("done: step 5 of 20, ")) << status(run).output;
}

// One rank is stopped for most of the time. Its steps take longer than the time between two stops, so that it is at
// work when it is stopped, and does not wait for the other rank.
TEST(RunStatusOfARun, ASlowRankIsNamedWithItsNode) {
  const SmallRun run("status_slow_rank");
  const std::string train =
      command_line(program_under_test(), {"train", run.config_path(), "train.steps=22", "model.width=128",
                                          "model.layers=3", "train.global_batch=24", "straggler.window=20"});
  const Outcome outcome = run_shell(
      fmt::format("({} {} & job=$!; while [ ! -e {}/black_box/rank-0001.box ] && kill -0 $job; do sleep 0.01; done; "
                  "slow={}; "
                  "while kill -STOP $slow 2>/dev/null; do sleep 0.08; kill -CONT $slow; sleep 0.007; done; wait $job)",
                  mpirun(2), train, run.run_dir(), rank_1_of("$job")));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::string log = log_of(run);
  EXPECT_GE(
      count_of(log, kLine +
                        "\\[rank 0\\] warning: step \\d+: rank 1 \\(node \\S+\\) is slow: [0-9.]+ ms of work a step, "
                        "others [0-9.]+ ms;\\s+in \\w+ [0-9.]+ ms, others "),
      1u)
      << log;
  EXPECT_EQ(count_of(log, "rank 0 \\(node \\S+\\) is slow"), 0u) << log;
  EXPECT_EQ(count_of(prom_of(run), "\nmantissa_slow_ranks\\{[^}]*\\} [01]\n"), 1u) << prom_of(run);
  EXPECT_NE(status(run).output.find("is slow: "), std::string::npos) << status(run).output;
}

using Link = void (*)(const std::filesystem::path&, const std::filesystem::path&);

// A link that somebody has planted in the run folder must not lead to a file elsewhere.
TEST(RunFolder, NoFileIsWrittenThroughALink) {
  const ThreadedRun run("planted_links");
  const std::string target = run.folder() + "/target";
  const std::vector<std::string> names = {"run.log",
                                          "metrics.jsonl",
                                          "metrics.prom",
                                          "probes.mtp",
                                          "profile_rank0.txt",
                                          "trace_rank0.json",
                                          "watchdog/alarm",
                                          "watchdog/report-rank-0000.json",
                                          "watchdog/stacks-rank-0000.txt",
                                          "black_box/rank-0000.box"};
  const std::vector<std::string> settings = {"profile=true", "probe.enabled=true", "probe.interval=3"};
  for (const Link link : {Link(std::filesystem::create_symlink), Link(std::filesystem::create_hard_link)}) {
    for (const char* last : {"train.stop_at_step=8", "train.steps=20"}) {  // a new run, and its continuation
      write_file(target, "kept");
      for (const std::string& name : names) {
        for (const char* suffix : {"", ".partial", ".previous"}) {
          const std::filesystem::path path = fmt::format("{}/{}{}", run.run_dir(), name, suffix);
          std::filesystem::create_directories(path.parent_path());
          std::filesystem::remove(path);
          link(target, path);
        }
      }
      const Outcome outcome = run.try_train(1, with(settings, {last}));
      EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
      EXPECT_EQ(read_file(target), "kept") << outcome.output;
    }
    std::filesystem::remove_all(run.run_dir());
  }
}

// A run removes old checkpoints and the rest of a killed start, and empties its lock.
TEST(RunFolder, NothingIsRemovedBehindALink) {
  const ThreadedRun run("linked_folders");
  const std::string other = run.folder() + "/other", kept = other + "/step-00000001.partial/kept";
  std::filesystem::create_directories(other + "/step-00000001.partial");
  std::filesystem::create_directories(run.run_dir());
  write_file(kept, "kept");
  for (const char* name : {"checkpoints", "black_box", "watchdog", "huggingface"}) {
    const std::string link = run.run_dir() + "/" + name;
    std::filesystem::create_directory_symlink(other, link);
    const Outcome outcome = run.try_train(1, {});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(unwrapped(outcome.output).find(fmt::format("'{}' is a symbolic link to '{}'", link, other)),
              std::string::npos)
        << outcome.output;
    EXPECT_TRUE(std::filesystem::exists(kept));
    std::filesystem::remove(link);
  }
  const std::pair<Link, const char*> links[] = {
      {Link(std::filesystem::create_symlink), "its lock: it is a symbolic link"},
      {Link(std::filesystem::create_hard_link), "its lock: it has a second name"}};
  for (const auto& [make_link, message] : links) {
    std::filesystem::remove(run.run_dir() + "/lock");
    make_link(kept, run.run_dir() + "/lock");
    const Outcome outcome = run.try_train(1, {});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(unwrapped(outcome.output).find(message), std::string::npos) << outcome.output;
    EXPECT_EQ(read_file(kept), "kept");
  }
  // The run folder itself may lie elsewhere.
  std::filesystem::remove_all(run.run_dir());
  std::filesystem::create_directory_symlink(other, run.run_dir());
  run.train(1, {"train.steps=2", "optimizer.warmup_steps=0"});
}

}  // namespace
}  // namespace mantissa::testing
