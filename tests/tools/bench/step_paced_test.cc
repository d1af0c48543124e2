// `//tools/bench:step --paced`: standard input triggers each round, on one and several ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;

// Runs the program with these lines on its standard input. On several ranks, rank 0 reads them.
std::string paced_step(const std::string& orders) {
  const std::string path = fresh_folder("orders") + "/orders";
  write_file(path, orders);
  const std::string program = command_line(
      "tools/bench/step", {"tests/tools/bench/tiny.yaml", "device=cpu", "--paced", "--warm-up=2", "--steps=3"});
  return command_line("sh", {"-c", program + " < " + path});
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

void expect_two_rounds(const Outcome& outcome) {
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(count(outcome.output, "ready: yes\n"), 3) << outcome.output;
  EXPECT_EQ(count(outcome.output, "step_ms: "), 2) << outcome.output;
  const size_t losses = outcome.output.find("\nlosses: ");
  ASSERT_NE(losses, std::string::npos) << outcome.output;
  const std::string line = outcome.output.substr(losses + 1, outcome.output.find('\n', losses + 1) - losses - 1);
  EXPECT_EQ(count(line, " "), 2 + 2 * 3) << line;
  EXPECT_THAT(outcome.output, HasSubstr("\nflops_per_step: "));
}

TEST(StepPaced, RunsARoundForEachOrder) { expect_two_rounds(run_shell(paced_step("round\nround\nend\n"))); }

TEST(StepPaced, EndsWithItsInput) { expect_two_rounds(run_shell(paced_step("round\nround\n"))); }

TEST(StepPaced, TellsTheOtherRanks) { expect_two_rounds(run_under_mpirun(2, paced_step("round\nround\nend\n"))); }

TEST(StepPaced, RefusesAnotherOrder) {
  const Outcome outcome = run_shell(paced_step("rund\n"));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("error: standard input: expected 'round' or 'end', got 'rund'"));
}

}  // namespace
}  // namespace mantissa::testing
