// precision.schedule: the precision of each step, and rejected settings.
#include "tools/config/precision_phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;

constexpr const char* kScheduleYaml = R"(
model: {layers: 2, width: 32, heads: 2, context: 16, vocab: 256}
data: {train: [text.txt]}
train: {steps: 100, global_batch: 4, micro_batch: 4}
precision:
  compute: bf16
  weights: fp32
)";

Config scheduled(const std::string& schedule, std::vector<std::string> more = {}) {
  more.push_back("precision.schedule=" + schedule);
  return parse_config(kScheduleYaml, "run.yaml", more);
}

std::string schedule_error(const std::string& schedule, const std::vector<std::string>& more = {}) {
  try {
    scheduled(schedule, more);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PrecisionPhases, WithoutAScheduleThereIsOne) {
  const Config config = parse_config(kScheduleYaml, "run.yaml");
  EXPECT_EQ(phase_count(config), 1);
  EXPECT_EQ(phase_at(config, 99), 0);
  EXPECT_EQ(phase_end(config, 0), 100);
  EXPECT_EQ(flatten(in_phase(config, 0)), flatten(config));
}

TEST(PrecisionPhases, BeginAfterTheStepsThatTheyName) {
  // 4 * 16 tokens a step: 641 end with step 11.
  const Config config = scheduled("[{after_step: 7, compute: fp32}, {after_tokens: 641, compute: fp16}]");
  ASSERT_EQ(phase_count(config), 3);
  for (const auto& [steps, phase] : {std::pair{0, 0}, {6, 0}, {7, 1}, {10, 1}, {11, 2}, {1000, 2}}) {
    EXPECT_EQ(phase_at(config, steps), phase) << steps;
  }
  EXPECT_EQ(phase_begin(config, 2), 11);
  EXPECT_EQ(phase_end(config, 0), 7);
  EXPECT_EQ(phase_end(config, 1), 11);
  EXPECT_EQ(phase_end(config, 2), 100);
  EXPECT_EQ(phase_begin(scheduled("[{after_tokens: 640, compute: fp32}]"), 1), 10);
}

TEST(PrecisionPhases, HaveWhatTheyDoNotNameFromTheSettingsThemselves) {
  const Config config = scheduled(
      "[{after_step: 7, compute: fp16}, {after_step: 9, recipe: mxfp8, "
      "rules: [{match: blocks.0.mlp, format: fp32}]}]");
  const Config second = in_phase(config, 1), third = in_phase(config, 2);
  EXPECT_EQ(second.precision.compute, DType::kF16);
  EXPECT_EQ(second.precision.weights, WorkingWeights::kFp32);
  EXPECT_EQ(third.precision.compute, DType::kBF16);
  EXPECT_EQ(third.precision.recipe, parse_recipe("mxfp8"));
  ASSERT_EQ(third.precision.rules.size(), 1u);
  EXPECT_EQ(third.precision.rules[0].match, "blocks.0.mlp");
  EXPECT_TRUE(second.precision_schedule.empty());
}

TEST(PrecisionPhases, HaveTheLossScalerThatTheyNeed) {
  const Config config = scheduled("[{after_step: 7, compute: fp16}, {after_step: 9}]");
  EXPECT_EQ(in_phase(config, 0).scaler.scaler.mode, ScalerMode::kNone);
  EXPECT_EQ(in_phase(config, 1).scaler.scaler.mode, ScalerMode::kDynamic);
  EXPECT_EQ(in_phase(config, 2).scaler.scaler.mode, ScalerMode::kNone);
}

// Settings that some phases do not use stay in all phases.
TEST(PrecisionPhases, KeepAllOtherSettings) {
  const Config config =
      scheduled("[{after_step: 7, weights: low}, {after_step: 9, weights: low, recipe: delayed}]",
                {"optimizer.weight_rounding=stochastic", "precision.delayed.history=16", "comm.gather=fp8"});
  for (int phase = 0; phase < 3; ++phase) {
    const Config own = in_phase(config, phase);
    EXPECT_EQ(own.optimizer.adamw.weight_rounding, WeightRounding::kStochastic);
    EXPECT_EQ(own.comm.gather, WeightGather::kF8);
    EXPECT_EQ(own.precision.delayed.history, 16);
  }
}

TEST(PrecisionPhases, RefuseWhatIsNotInOrder) {
  EXPECT_THAT(schedule_error("[{compute: fp32}]"), HasSubstr("after_step = 0 and after_tokens = 0: give one of them"));
  EXPECT_THAT(schedule_error("[{after_step: 3, after_tokens: 99, compute: fp32}]"), HasSubstr("give one of them"));
  EXPECT_THAT(schedule_error("[{after_step: 9, compute: fp32}, {after_step: 9, compute: fp16}]"),
              HasSubstr("precision.schedule[1] (command line"));
  EXPECT_THAT(schedule_error("[{after_step: 9, compute: fp32}, {after_tokens: 64, compute: fp16}]"),
              HasSubstr("comes at step 1, not after precision.schedule[0]"));
}

TEST(PrecisionPhases, TheirOwnSettingsAreCheckedAndNamed) {
  EXPECT_THAT(schedule_error("[{after_step: 9, compute: fp32, rules: [{match: a..b, format: fp32}]}]"),
              ::testing::AllOf(HasSubstr("precision.schedule[0]"), HasSubstr("precision.rules[0] (command line")));
  EXPECT_THAT(schedule_error("[{after_step: 9, compoute: fp32}]"), HasSubstr("compute"));
  EXPECT_THAT(schedule_error("[{after_step: 9, compute: fp31}]"),
              HasSubstr("precision.schedule[0].compute: expected one of"));
}

TEST(PrecisionPhases, AreWrittenAndReadBack) {
  const Config config = scheduled(
      "[{after_step: 7, compute: fp16, rules: [{match: head, format: fp32}, {match: "
      "blocks.1, format: bf16}]}, {after_tokens: 6400, recipe: delayed}]");
  EXPECT_EQ(flatten(parse_config(to_yaml(config), "again.yaml")), flatten(config));
  EXPECT_NE(fingerprint(config), fingerprint(parse_config(kScheduleYaml, "run.yaml")));
  const auto differences = training_differences(config, scheduled("[{after_step: 7, compute: fp16}]"));
  EXPECT_FALSE(differences.empty());
}

}  // namespace
}  // namespace mantissa
