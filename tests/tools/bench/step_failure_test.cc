// An error in //tools/bench:step ends the job on all ranks with the error's exit code and is reported once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string step(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"tests/tools/bench/tiny.yaml", "device=cpu", "comm.backend=mpi", "--rounds=1"});
  return command_line("tools/bench/step", arguments);
}

TEST(StepFailure, OfAllRanksIsToldOnce) {
  const std::string overflow = "test.faults=[{step: 2, rank: 1, parameter: blocks.0.mlp.up.weight}]";
  const Outcome outcome = run_under_mpirun(2, step({overflow}));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  const std::string message = "step 2 was skipped";
  const size_t first = outcome.output.find(message);
  ASSERT_NE(first, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(message, first + 1), std::string::npos) << outcome.output;
}

// Rank 0 waits until the other one has set up the training.
TEST(StepFailure, OfOneRankEndsTheOtherThatWaitsForIt) {
  const Outcome outcome = run_under_mpirun(1, step({}) + " : -np 1 " + step({"--export=/no_such_folder/start"}));
  EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("/no_such_folder/start: cannot be written"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("step_ms")));
}

TEST(StepFailure, AloneHasTheExitCodeOfTheError) {
  const Outcome outcome = run_shell(command_line("tools/bench/step", {"tests/tools/bench/tiny.yaml", "device=abacus"}));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("device:"));
}

}  // namespace
}  // namespace mantissa::testing
