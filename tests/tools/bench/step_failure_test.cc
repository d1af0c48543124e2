// An error in tools/bench/step ends the job: with the exit code of the error, on all ranks, told once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/train/program.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// With its temporary files in `folder`.
std::string step(const std::string& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"TMPDIR=" + folder, "tools/bench/step", "tests/tools/bench/tiny.yaml",
                                       "device=cpu", "comm.backend=mpi", "--rounds=1"});
  return command_line("env", arguments);
}

TEST(StepFailure, OfAllRanksIsToldOnce) {
  const std::string overflow = "test.gradients=[{step: 2, rank: 1, parameter: blocks.0.mlp.up.weight}]";
  const std::string folder = fresh_folder("all_ranks");
  const Outcome outcome = run_under_mpirun(2, step(folder, {overflow}));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  const std::string message = "step: step 2 was skipped";
  const size_t first = outcome.output.find(message);
  ASSERT_NE(first, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(message, first + 1), std::string::npos) << outcome.output;
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the tokens are left";
}

// Rank 0 waits for the other one to set up the training.
TEST(StepFailure, OfOneRankEndsTheOtherThatWaitsForIt) {
  const std::string folder = fresh_folder("one_rank");
  const Outcome outcome =
      run_under_mpirun(1, step(folder, {}) + " : -np 1 " + step(folder, {"--export=/no_such_folder/start"}));
  EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step: /no_such_folder/start: cannot be written"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("step_ms")));
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the tokens are left";
}

// Nothing of a killed program runs any more: what it would leave must be gone before.
TEST(StepFailure, AKilledProgramLeavesNoFile) {
  const std::string folder = fresh_folder("killed");
  const std::string paced = command_line("env", {"TMPDIR=" + folder, "tools/bench/step", "tests/tools/bench/tiny.yaml",
                                                 "device=cpu", "--paced", "--warm-up=1"});
  // The shell's process becomes env's, and that the program's.
  const std::string until_ready = "while read -r line; do [ \"$line\" = 'ready: yes' ] && kill -KILL \"$pid\"; done";
  const Outcome outcome =
      run_shell("mkfifo " + folder + ".in " + folder + ".out && { " + paced + " <" + folder + ".in >" + folder +
                ".out & pid=$!; exec 3>" + folder + ".in; " + until_ready + " <" + folder + ".out; wait \"$pid\"; }");
  EXPECT_EQ(outcome.exit_code, 128 + 9) << outcome.output;
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the tokens are left";
}

TEST(StepFailure, AloneHasTheExitCodeOfTheError) {
  const Outcome outcome = run_shell(command_line("tools/bench/step", {"tests/tools/bench/tiny.yaml", "device=abacus"}));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step: "));
}

}  // namespace
}  // namespace mantissa::testing
