// `mantissa prove` as a user runs it.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// With temporary files in this folder. It is short: OpenMPI's sockets lie in it.
struct Scratch {
  explicit Scratch(const std::string& name) : path("/tmp/" + name + "." + std::to_string(getpid())) {
    std::filesystem::create_directories(path);
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  bool is_empty() const { return std::filesystem::is_empty(path); }

  const std::string path;
};

TEST(ProveVerb, RanksThreadsAndExchangesGiveTheSameBits) {
  const SmallRun small("prove");
  const Scratch scratch("prove_same");
  const std::string path = small.folder() + "/figures.json";
  const Outcome outcome = run_shell(
      "TMPDIR=" + scratch.path + " " +
      command_line(program_under_test(), {"prove", small.config_path(), "--ranks", "1,2,3", "--threads", "1,2",
                                          "--exchange", "direct,hierarchical", "--steps", "6", "--json", path}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "same bits: 10 of 10 runs: 6 steps, train.lanes=3; weights ")) << outcome.output;
  EXPECT_TRUE(scratch.is_empty());
  EXPECT_FALSE(std::filesystem::exists(small.run_dir())) << "nothing is written but the figures";
  const json figures = json::parse(read_file(path));
  // Its runs are the first steps of a training.
  small.train(1, {"train.lanes=3", "train.stop_at_step=6"});
  EXPECT_EQ(small.records("hash").at(0).at("weights"), figures.at("runs")[0].at("weights"));
  const auto losses = small.losses();
  for (const json& run : figures.at("runs")) {
    EXPECT_GT(run.at("memory_bytes"), 0.0);
    ASSERT_EQ(run.at("losses").size(), losses.size());
    for (const auto& [step, loss] : losses) EXPECT_EQ(run.at("losses")[static_cast<size_t>(step - 1)], loss) << step;
  }
}

TEST(ProveVerb, ARunThatFailsEndsItWithItsLastLines) {
  const SmallRun small("prove_fails");
  const Scratch scratch("prove_fails");
  const Outcome outcome = run_shell(
      "TMPDIR=" + scratch.path + " " +
      command_line(program_under_test(), {"prove", small.config_path(), "--ranks", "2,3", "--threads", "1",
                                          "test.faults=[{kind: exit, code: 3, rank: 1, step: 2, phase: reduce}]"}));
  EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "the run on 2 ranks, 1 thread, direct failed with exit code 3; its last lines:\n"))
      << outcome.output;
  EXPECT_TRUE(has(outcome.output, "test.faults[0]: exit")) << outcome.output;
  EXPECT_TRUE(scratch.is_empty());
}

// As Ctrl-C in a terminal: it reaches the verb, and not its ranks.
TEST(ProveVerb, ASignalEndsTheRanks) {
  for (const std::string ranks : {"3,1", "1,3"}) {
    const SmallRun small("prove_stopped");
    const Scratch scratch("prove_stopped");
    const std::string command =
        command_line(program_under_test(), {"prove", small.config_path(), "--ranks", ranks, "--threads", "1",
                                            "train.steps=1000000", "--steps", "1000000"});
    const std::string wait = "until grep -qs '\"step\":20,' " + scratch.path +
                             "/*/run/metrics.jsonl || ! kill -0 $job; do sleep 0.05; done; ";
    const Outcome outcome =
        run_shell("(TMPDIR=" + scratch.path + " " + command + " & job=$!; " + wait + "kill -TERM $job; wait $job)");
    EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
    EXPECT_TRUE(has(outcome.output, "stopped by SIGTERM in the run on " + ranks.substr(0, 1) + " rank"))
        << outcome.output;
    EXPECT_TRUE(scratch.is_empty()) << outcome.output;
    EXPECT_NE(run_shell("pgrep -f [t]rain.run_dir=" + scratch.path).exit_code, 0) << "ranks are left";
  }
}

TEST(ProveVerb, RefusesBadListsAndALauncher) {
  const SmallRun small("prove_lists");
  const auto refused = [&](const std::vector<std::string>& words, const std::string& message) {
    const Outcome outcome = run_program(0, with({"prove", small.config_path()}, words));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_TRUE(has(outcome.output, message)) << outcome.output;
  };
  refused({"--ranks", "1,x"}, "prove: --ranks: ");
  refused({"--ranks", "0,1"}, "prove: --ranks: ");
  refused({"--threads", "1.5"}, "prove: --threads: ");
  refused({"--exchange", "direct,none"}, "prove: --exchange: none not in ");
  refused({"--steps", "0"}, "prove: --steps: ");
  const Outcome launched = run_program(2, {"prove", small.config_path()});
  EXPECT_EQ(launched.exit_code, 2) << launched.output;
  EXPECT_TRUE(has(launched.output, "leave out mpirun or srun")) << launched.output;
  const Outcome alone = run_shell("PATH=/nowhere " + std::filesystem::absolute(program_under_test()).string() +
                                  " prove " + small.config_path() + " --ranks 2,3");
  EXPECT_EQ(alone.exit_code, 2) << alone.output;
  EXPECT_TRUE(has(alone.output, "mpirun cannot be started: No such file or directory")) << alone.output;
}

}  // namespace
}  // namespace mantissa::testing
