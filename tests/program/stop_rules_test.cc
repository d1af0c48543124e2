// Steps whose loss is far above that of the steps before: stop_rules.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/tensor/philox.h"
#include "tests/program/threaded_run.h"
#include "tools/train/step/batches.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGlobalBatch = 12, kContext = 32;

const std::vector<std::string> kRules = {"train.steps=60", "checkpoint.interval=10", "checkpoint.keep_last=0",
                                         "stop_rules.loss_z=6.0", "stop_rules.grad_norm_z=0.0"};

// Steps are compared with 16 others.
ThreadedRun short_sighted(const std::string& name, int max_rollbacks = 3) {
  return ThreadedRun(name).adjusted([max_rollbacks](Config& config) {
    config.stop_rules.window = 16;
    config.stop_rules.max_rollbacks = max_rollbacks;
    config.precision_adaptive.options.window = 8;
  });
}

// Where the samples of a step lie in the text, which has `tokens` tokens.
std::vector<int32_t> positions_of(const SmallRun& run, int64_t tokens, int64_t step) {
  const std::string path = run.folder() + "/positions.bin";
  std::ofstream file(path, std::ios::binary);
  for (int32_t at = 0; at < tokens; ++at) file.write(reinterpret_cast<const char*>(&at), sizeof(at));
  file.close();
  const Config config = load_config(
      run.config_path(), {"data.format=tokens", "data.layout=u32", "model.vocab=65536", "data.train=[" + path + "]"});
  std::vector<int32_t> samples(kGlobalBatch * kContext), targets(samples.size()), begins;
  open_batches(config, Objective::kNextToken)
      ->train(static_cast<uint64_t>((step - 1) * kGlobalBatch), {samples, targets});
  for (size_t at = 0; at < samples.size(); at += kContext) begins.push_back(samples[at]);
  return begins;
}

// Noise of bytes that the text does not have, in all samples of these steps, which count from 1.
void make_noise(const SmallRun& run, const std::vector<int64_t>& steps) {
  std::string text = read_file(run.data_path());
  const auto tokens = static_cast<int64_t>(text.size());
  for (const int64_t step : steps) {
    for (const int32_t begin : positions_of(run, tokens, step)) {
      for (int64_t at = begin; at <= begin + kContext && at < tokens; ++at) {
        text[static_cast<size_t>(at)] =
            static_cast<char>(128 + philox(1, {static_cast<uint32_t>(at), 0, 0, 0})[0] % 128);
      }
    }
  }
  write_file(run.data_path(), text);
}

nlohmann::json step_record(const SmallRun& run, int64_t step) {
  for (const nlohmann::json& record : run.records("step")) {
    if (record.at("step") == step) return record;
  }
  return {};
}

class StopRules : public ::testing::TestWithParam<int> {
 protected:
  const int ranks_ = GetParam();

  std::string name(const std::string& test) const { return test + std::to_string(ranks_); }
};

TEST_P(StopRules, SkipHoldsBackTheUpdateOfASpike) {
  const ThreadedRun straight = short_sighted(name("skip_straight")), halves = short_sighted(name("skip_halves"));
  const std::vector<std::string> settings = with(kRules, {"stop_rules.action=skip"});
  for (const SmallRun* run : {&straight, &halves}) make_noise(*run, {45});
  const Outcome outcome = straight.train(ranks_, settings);
  EXPECT_THAT(outcome.output, HasSubstr("step 45 SKIPPED: the loss "));
  for (const nlohmann::json& record : straight.records("step")) {
    EXPECT_EQ(record.at("applied"), record.at("step") != 45) << record;
    EXPECT_EQ(record.contains("spike"), record.at("step") == 45) << record;
  }
  // The window goes through a checkpoint within a run, whose rest decides alike.
  halves.train(ranks_, with(settings, {"train.stop_at_step=44"}));
  halves.train(ranks_, settings);
  EXPECT_EQ(straight.losses(), halves.losses());
  EXPECT_EQ(straight.hashes(60), halves.hashes(60));
}

TEST_P(StopRules, RollbackGoesOnBehindTheBatchesOfTheSpikes) {
  const ThreadedRun straight = short_sighted(name("rollback_straight")),
                    halves = short_sighted(name("rollback_halves"));
  const std::vector<std::string> settings = with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=2"});
  for (const SmallRun* run : {&straight, &halves}) make_noise(*run, {45, 46});
  const Outcome outcome = straight.train(ranks_, settings);
  EXPECT_THAT(outcome.output, HasSubstr("rolled back from step 46 to the checkpoint of step 40 (rollback 1 of 3)"));
  const auto rollbacks = straight.records("rollback");
  ASSERT_EQ(rollbacks.size(), 1u);
  EXPECT_EQ(rollbacks[0].at("step"), 40);
  EXPECT_EQ(rollbacks[0].at("from_step"), 46);
  EXPECT_EQ(rollbacks[0].at("skipped_batches"), 6);
  EXPECT_EQ(straight.losses().size(), 60u);
  for (const nlohmann::json& record : straight.records("step")) EXPECT_TRUE(record.at("applied")) << record;
  EXPECT_EQ(open_checkpoint(straight.checkpoint_folder(60)).state.at("skipped_batches"), 6);

  halves.train(ranks_, with(settings, {"train.stop_at_step=53"}));  // after the rollback
  halves.train(ranks_, settings);
  EXPECT_EQ(straight.hashes(60), halves.hashes(60));
  EXPECT_EQ(straight.losses(), halves.losses());
}

// The checkpoints of the stops lie between the goal of the rollback and the spikes, and push the goal out by keep_last.
TEST_P(StopRules, EarlyStopsDoNotChangeWhereARollbackReturnsTo) {
  const ThreadedRun straight = short_sighted(name("stops_straight")), parts = short_sighted(name("stops_parts"));
  const std::vector<std::string> settings =
      with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=2", "checkpoint.keep_last=1"});
  for (const SmallRun* run : {&straight, &parts}) make_noise(*run, {45, 46});
  straight.train(ranks_, settings);
  for (const std::string stop : {"42", "43", "44"}) parts.train(ranks_, with(settings, {"train.stop_at_step=" + stop}));
  const Outcome last = parts.train(ranks_, settings);
  EXPECT_THAT(last.output, HasSubstr("rolled back from step 46 to the checkpoint of step 40 (rollback 1 of 3)"));
  EXPECT_EQ(straight.hashes(60), parts.hashes(60));
  EXPECT_EQ(straight.losses(), parts.losses());
}

TEST_P(StopRules, ARollbackPassesOverADamagedCheckpointForTheIntervalBefore) {
  const ThreadedRun run = short_sighted(name("rollback_damaged"));
  const std::vector<std::string> settings = with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=2"});
  make_noise(run, {45, 46});
  for (const std::string stop : {"35", "44"}) run.train(ranks_, with(settings, {"train.stop_at_step=" + stop}));
  write_file(run.checkpoint_folder(40) + "/model.safetensors", "damaged");
  const Outcome older = run.train(ranks_, with(settings, {"train.stop_at_step=47"}));
  EXPECT_THAT(older.output, HasSubstr("rolled back from step 46 to the checkpoint of step 30 (rollback 1 of 3)"));
}

TEST_P(StopRules, ARollbackWhoseCheckpointWasRemovedSaysSo) {
  const ThreadedRun run = short_sighted(name("rollback_removed"));
  const std::vector<std::string> settings = with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=2"});
  make_noise(run, {45, 46});
  run.train(ranks_, with(settings, {"train.stop_at_step=44"}));
  for (const int step : {10, 20, 30, 40}) std::filesystem::remove_all(run.checkpoint_folder(step));
  const Outcome outcome = run.try_train(ranks_, settings);
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("expected a checkpoint that was saved at checkpoint.interval, up to step 40"));
}

TEST_P(StopRules, StopSavesTheStateBeforeTheSpike) {
  const ThreadedRun run = short_sighted(name("stop"));
  make_noise(run, {41, 42});
  const Outcome outcome = run.try_train(ranks_, with(kRules, {"stop_rules.action=stop", "stop_rules.consecutive=2"}));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped after 2 spikes in a row, the last in step 42: the loss "));
  ASSERT_TRUE(run.has_checkpoint(42));
  EXPECT_EQ(run.hashes(42), run.hashes(40));
}

INSTANTIATE_TEST_SUITE_P(Ranks, StopRules, ::testing::Values(1, 2));

// Half of the 128 steps that a run compares with must be known.
TEST(StopRulesOfARun, SkipHoldsBackTheUpdateOfASpikeOnProcesses) {
  const SmallRun run("skip_processes");
  make_noise(run, {70});
  const Outcome outcome = run.train(2, with(kRules, {"stop_rules.action=skip", "train.steps=72"}));
  EXPECT_THAT(outcome.output, HasSubstr("step 70 SKIPPED: the loss "));
  for (const nlohmann::json& record : run.records("step")) EXPECT_EQ(record.at("applied"), record.at("step") != 70);
}

TEST(StopRulesOfARun, WarnAppliesTheStepAndSaysSoOnce) {
  const ThreadedRun run = short_sighted("spike_warn");
  make_noise(run, {45, 46});
  const Outcome outcome = run.train(1, with(kRules, {"stop_rules.action=warn"}));
  EXPECT_THAT(outcome.output, HasSubstr("warning: step 45: a spike: the loss "));
  EXPECT_THAT(outcome.output, ::testing::Not(HasSubstr("step 46: a spike")));
  EXPECT_THAT(outcome.output, HasSubstr("step 47: no spike any more, after 2 in a row"));
  EXPECT_TRUE(step_record(run, 45).at("applied"));
  EXPECT_TRUE(step_record(run, 46).contains("spike"));
}

TEST(StopRulesOfARun, RollbacksAreBounded) {
  const ThreadedRun run = short_sighted("spike_bounded", 1);
  make_noise(run, {45, 52});
  const std::vector<std::string> once = {"stop_rules.action=rollback", "stop_rules.consecutive=1"};
  const Outcome outcome = run.try_train(1, with(kRules, once));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  // The noise of batch 52 is met in step 47: five batches were left out.
  EXPECT_THAT(outcome.output, HasSubstr("rollback 1 of 1"));
  EXPECT_THAT(outcome.output, HasSubstr("stopped after 1 spike in a row, the last in step 47: the loss "));
  EXPECT_THAT(outcome.output, HasSubstr(" and 1 rollback; the weights are those before"));
}

TEST(StopRulesOfARun, ARollbackNeedsACheckpointOfThisRun) {
  const ThreadedRun run = short_sighted("spike_no_checkpoint");
  make_noise(run, {45});
  const Outcome outcome = run.try_train(
      1, with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=1", "checkpoint.interval=0"}));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr(", without a checkpoint to roll back to (checkpoint.interval); the weights are"));
  EXPECT_TRUE(run.has_checkpoint(45)) << "of the state before the spike";

  // The checkpoint of an early stop is none to roll back to, or the stop would have changed the run.
  const ThreadedRun stopped = short_sighted("spike_after_stop");
  make_noise(stopped, {45});
  const std::vector<std::string> seldom =
      with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=1", "checkpoint.interval=50"});
  stopped.train(1, with(seldom, {"train.stop_at_step=40"}));
  const Outcome after = stopped.try_train(1, seldom);
  EXPECT_EQ(after.exit_code, 5) << after.output;
  EXPECT_THAT(after.output, HasSubstr(", without a checkpoint to roll back to (checkpoint.interval); the weights are"));
}

TEST(StopRulesOfARun, ARunThatBeganWithTheCheckpointOfAnotherReturnsToIt) {
  const ThreadedRun first = short_sighted("spike_first_run"), second = short_sighted("spike_second_run");
  make_noise(first, {45});
  first.train(1, with(kRules, {"train.stop_at_step=41"}));
  const std::vector<std::string> settings =
      with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=1", "checkpoint.interval=50",
                    "data.train=[" + first.data_path() + "]"});
  second.train(1, with(settings, {"checkpoint.resume=" + first.run_dir(), "train.stop_at_step=43"}));
  const Outcome outcome = second.train(1, settings);
  EXPECT_THAT(outcome.output, HasSubstr("rolled back from step 45 to the checkpoint of step 41 (rollback 1 of 3)"));
}

// The second one leaves out the batches of the first, too: its checkpoint does not know of them.
TEST(StopRulesOfARun, TwoRollbacksToOneCheckpointAddUp) {
  const ThreadedRun run = short_sighted("spike_twice");
  make_noise(run, {45, 48});
  run.train(1, with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=1"}));
  const auto rollbacks = run.records("rollback");
  ASSERT_EQ(rollbacks.size(), 2u);
  EXPECT_EQ(rollbacks[0].at("skipped_batches"), 5);
  EXPECT_EQ(rollbacks[1].at("from_step"), 43);  // that read batch 48
  EXPECT_EQ(rollbacks[1].at("skipped_batches"), 8);
  const nlohmann::json state = open_checkpoint(run.checkpoint_folder(60)).state;
  EXPECT_EQ(state.at("run").at("rollbacks"), 2);
  EXPECT_EQ(state.at("skipped_batches"), 8);
}

// The session after the rollback plans the same faults again, and runs step 43 again.
TEST(StopRulesOfARun, FaultsThatHaveStruckStrikeNoMoreAfterARollback) {
  const ThreadedRun run = short_sighted("rollback_faults");
  make_noise(run, {45});
  const Outcome outcome = run.train(
      1, with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=1",
                       "test.faults=[{kind: no_space, step: 1, file: /checkpoints/}, {kind: flip, step: 43, parameter: "
                       "blocks.0.mlp.up.weight, element: 7, bit: 3}]"}));
  EXPECT_EQ(run.records("rollback").size(), 1u);
  EXPECT_THAT(outcome.output, HasSubstr("checkpoint of step 10 not saved"));
  EXPECT_TRUE(run.has_checkpoint(50)) << outcome.output;
  const size_t first = outcome.output.find("test.faults[1]: flip of bit 3");
  ASSERT_NE(first, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("test.faults[1]: flip", first + 1), std::string::npos) << outcome.output;
}

// A rollback of precision.adaptive does not count for stop_rules.max_rollbacks.
TEST(StopRulesOfARun, RollbacksOfAdaptivePrecisionAreNotCounted) {
  const ThreadedRun run = short_sighted("rollback_both");
  make_noise(run, {45});
  run.train(
      1, with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=1",
                       "precision.adaptive.levels=[{compute: bf16}, {recipe: delayed}]", "precision.adaptive.start=1",
                       "precision.adaptive.check_interval=2", "precision.adaptive.min_steps=4",
                       "precision.adaptive.warmup=2", "precision.adaptive.stable_steps=0",
                       "precision.adaptive.norm_factor=1e6", "precision.adaptive.rollback=true",
                       "test.faults=[{kind: flip, step: 55, parameter: blocks.0.mlp.up.weight, element: 5, "
                       "bit: 30}]"}));
  const auto rollbacks = run.records("rollback");
  ASSERT_EQ(rollbacks.size(), 2u);
  EXPECT_EQ(rollbacks[0].at("step"), 40);
  EXPECT_EQ(rollbacks[0].at("rollbacks"), 1);
  EXPECT_EQ(rollbacks[1].at("step"), 50);
  EXPECT_THAT(rollbacks[1].at("cause").get<std::string>(), HasSubstr("precision.adaptive raises the precision"));
  EXPECT_EQ(rollbacks[1].at("rollbacks"), 1);
  EXPECT_EQ(open_checkpoint(run.checkpoint_folder(60)).state.at("run").at("rollbacks"), 1);
}

// The session after the switch plans the fault again, and meets no file for it.
TEST(StopRulesOfARun, FaultsThatHaveStruckStrikeNoMoreAfterASwitchOfPrecision) {
  const ThreadedRun run = short_sighted("switch_faults");
  const Outcome outcome = run.train(1, {"train.steps=20", "checkpoint.interval=5", "precision.compute=fp32",
                                        "precision.schedule=[{after_step: 10, compute: bf16}]",
                                        "test.faults=[{kind: no_space, step: 1, file: /step-00000005}]"});
  EXPECT_THAT(outcome.output, HasSubstr("checkpoint of step 5 not saved"));
}

// The checkpoint of step 45 was saved within the row.
TEST(StopRulesOfARun, ARollbackLeavesTheRowOfSpikesBehind) {
  const ThreadedRun run = short_sighted("rollback_row");
  make_noise(run, {45, 46, 47});
  run.train(1, with(kRules, {"stop_rules.action=rollback", "stop_rules.consecutive=2", "checkpoint.interval=1"}));
  const auto rollbacks = run.records("rollback");
  ASSERT_EQ(rollbacks.size(), 1u);
  EXPECT_EQ(rollbacks[0].at("step"), 45);
}

}  // namespace
}  // namespace mantissa::testing
