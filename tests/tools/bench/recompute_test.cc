// tools/bench/recompute: one line for each setting, with less memory from line to line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;

Outcome recompute(const std::string& more) {
  return run_shell(
      "tools/bench/recompute --program tools/bench/step tests/tools/bench/tiny.yaml device=cpu --rounds=2 "
      "--warm-up=1 '" +
      more + "'");
}

// The number after `label` in the line of a setting.
double value(const std::string& output, const std::string& setting, const std::string& label) {
  const size_t line = output.find("train.recompute=" + setting + ": ");
  const size_t at = output.find(label, line);
  return line == std::string::npos || at == std::string::npos ? -1.0 : std::stod(output.substr(at + label.size()));
}

TEST(Recompute, TellsTimeAndMemoryOfEachSetting) {
  const Outcome outcome = recompute("model.layers=4");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto activations = [&](const char* setting) { return value(outcome.output, setting, "; activations "); };
  EXPECT_GT(activations("full"), 0.0);
  EXPECT_LT(activations("full"), activations("selective"));
  EXPECT_LT(activations("selective"), activations("none"));
  for (const char* setting : {"none", "selective", "full"}) {
    EXPECT_GT(value(outcome.output, setting, "ms a step "), 0.0) << outcome.output;
    EXPECT_GT(value(outcome.output, setting, "; process "), activations(setting)) << outcome.output;
  }
}

TEST(Recompute, RefusesAWrongCommandLine) {
  for (const auto& [option, text] : {std::pair{"--rounds=0", "--rounds: expected a number of at least 1"},
                                     std::pair{"--paced", "--paced is an option of"}}) {
    const Outcome outcome = recompute(option);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  }
}

TEST(Recompute, ErrorOfOneSettingEndsAll) {
  const Outcome outcome = recompute("test.faults=[{step: 2, parameter: blocks.0.mlp.up.weight}]");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("recompute: train.recompute=none: error: step 2 was skipped"));
}

}  // namespace
}  // namespace mantissa::testing
