// A precision that adapts: measurements take a training up and down a ladder, on all ranks in the same step, by the
// handover of a schedule, and rescue a run that fails in 8 bits.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <functional>

#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

// Two levels, begun on the lower one; the ladder's other settings let it move within 20 steps.
const std::vector<std::string> kLadder = {
    "precision.adaptive.levels=[{compute: bf16}, {recipe: delayed}]",
    "precision.adaptive.start=1",
    "precision.adaptive.min_steps=4",
    "precision.adaptive.check_interval=2",
    "precision.adaptive.warmup=2",
    "model.dropout=0.1",
};

// Signals look back over 8 steps.
ThreadedRun short_sighted(const std::string& name, const std::function<void(AdaptiveOptions&)>& more = {}) {
  return ThreadedRun(name).adjusted([more](Config& config) {
    config.precision_adaptive.options.window = 8;
    if (more) more(config.precision_adaptive.options);
  });
}

// On the last rank alone, in step 5: the loss is not finite.
std::string fault_in_step_5(int ranks) {
  return fmt::format(
      "\ntest:\n  activations:\n    - {{step: 5, rank: {}, layer: blocks.1.mlp.up, op: linear, value: nan}}\n",
      ranks - 1);
}
const std::vector<std::string> kWatchLoss = {"precision.adaptive.loss_rise=5", "precision.adaptive.stable_steps=6"};

// Without the loss of step 5: NaN is equal to nothing.
std::map<int64_t, double> finite_losses(const SmallRun& run) {
  auto losses = run.losses();
  std::erase_if(losses, [](const auto& entry) { return std::isnan(entry.second); });
  return losses;
}

class Adaptive : public ::testing::TestWithParam<int> {};

TEST_P(Adaptive, GoesUpBehindAFaultAtOnceAndDownAfterStableSteps) {
  const int ranks = GetParam();
  // A run of processes looks back over 100 steps, as every run does.
  ThreadedRun run = ranks == 1 ? short_sighted("up_and_down1") : ThreadedRun("up_and_down2", Ranks::kProcesses);
  const Outcome outcome =
      run.with_yaml(fault_in_step_5(ranks)).train(ranks, with(with(kLadder, kWatchLoss), {"faults.max_consecutive=1"}));
  const auto switches = run.records("precision");
  ASSERT_EQ(switches.size(), 2u) << outcome.output;
  EXPECT_EQ(switches[0].at("step"), 5);
  EXPECT_EQ(
      switches[0].at("cause"),
      "precision.adaptive raises the precision from delayed to bf16 after step 5: the loss was not finite (step 5; "
      "threshold 5)");
  EXPECT_EQ(switches[0].at("changes"), nlohmann::json({"precision.recipe: delayed -> none"}));
  EXPECT_EQ(switches[0].at("to_level"), 0);
  ASSERT_EQ(switches[0].at("signals").size(), 1u);
  EXPECT_EQ(switches[0].at("signals")[0].at("signal"), "loss");
  EXPECT_TRUE(switches[0].at("signals")[0].at("value").is_null());
  EXPECT_EQ(switches[0].at("signals")[0].at("threshold"), 5.0);
  // Six steps after step 5, at the next decision.
  EXPECT_EQ(switches[1].at("step"), 12);
  EXPECT_EQ(
      switches[1].at("cause"),
      "precision.adaptive lowers the precision from bf16 to delayed after step 12: 7 steps without an uneasy signal");
  EXPECT_EQ(run.records("step").size(), 20u);
}

// Before the fault, in the step of it, after it, and where the return is decided.
TEST_P(Adaptive, StoppedAndResumedAnywhereEqualsTheWholeBitForBit) {
  const int ranks = GetParam();
  const auto settings = with(kLadder, kWatchLoss);
  ThreadedRun straight = short_sighted(fmt::format("straight{}", ranks));
  straight.with_yaml(fault_in_step_5(ranks)).train(ranks, settings);
  for (const int stop : {4, 5, 8, 12}) {
    ThreadedRun halves = short_sighted(fmt::format("halves{}_{}", stop, ranks));
    halves.with_yaml(fault_in_step_5(ranks)).train(ranks, with(settings, {fmt::format("train.stop_at_step={}", stop)}));
    halves.train(ranks, settings);
    EXPECT_EQ(finite_losses(straight), finite_losses(halves)) << stop;
    EXPECT_EQ(straight.hashes(20), halves.hashes(20)) << stop;
    EXPECT_EQ(open_checkpoint(straight.checkpoint_folder(20)).state.at("run"),
              open_checkpoint(halves.checkpoint_folder(20)).state.at("run"))
        << stop;
  }
}

// The same for signals that are not looked at in every step, where a stop can come between or upon what they are made
// of: evaluations, probes and measurements of the curvature. Thresholds are such that all of them are seen.
TEST_P(Adaptive, StoppedAndResumedWithEverySignalEqualsTheWholeBitForBit) {
  const int ranks = GetParam();
  const auto settings = with(
      kLadder,
      {"train.eval_interval=3", "precision.adaptive.stalled_evaluations=2", "precision.adaptive.min_improvement=9",
       "probe.enabled=true", "probe.interval=5", "precision.adaptive.underflow_share=0.9",
       "precision.adaptive.curvature=100", "precision.adaptive.norm_factor=50", "precision.adaptive.gradient_noise=100",
       "precision.adaptive.warmup=3", "precision.adaptive.loss_roughness=100", "precision.adaptive.skipped_share=0.5",
       "precision.adaptive.stable_steps=50", "checkpoint.interval=6", "checkpoint.keep_last=0"});
  const auto often = [](AdaptiveOptions& options) {
    options.window = 12;
    options.curvature_interval = 4;
    options.noise_interval = 4;
  };
  ThreadedRun straight = short_sighted(fmt::format("signals{}", ranks), often);
  const Outcome outcome = straight.train(ranks, settings);
  const auto switches = straight.records("precision");
  ASSERT_FALSE(switches.empty()) << outcome.output;
  EXPECT_EQ(switches[0].at("cause"),
            "precision.adaptive raises the precision from delayed to bf16 after step 10: the validation loss did not "
            "improve, evaluations in a row: 2 (step 9; threshold 2)");
  int curved = 0, compared = 0;
  for (const auto& step : straight.records("step")) {
    curved += step.contains("curvature") ? 1 : 0;
    compared += step.contains("gradient_noise") ? 1 : 0;
  }
  EXPECT_GT(curved, 0);
  EXPECT_GT(compared, 0);
  for (const int stop : {6, 8, 9}) {
    ThreadedRun halves = short_sighted(fmt::format("signal_halves{}_{}", stop, ranks), often);
    halves.train(ranks, with(settings, {fmt::format("train.stop_at_step={}", stop)}));
    halves.train(ranks, settings);
    EXPECT_EQ(finite_losses(straight), finite_losses(halves)) << stop;
    EXPECT_EQ(straight.hashes(20), halves.hashes(20)) << stop;
    EXPECT_EQ(open_checkpoint(straight.checkpoint_folder(20)).state.at("run").at("adaptive"),
              open_checkpoint(halves.checkpoint_folder(20)).state.at("run").at("adaptive"))
        << stop;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Adaptive, ::testing::Values(1, 2));

// Masters and moments are as they were: training goes on as if stopped and resumed in the other precision.
TEST(AdaptiveOnce, ASwitchIsWhatGoingOnInAnotherPrecisionIs) {
  const auto settings = with(with(kLadder, kWatchLoss), {"precision.adaptive.stable_steps=0"});
  ThreadedRun adapted = short_sighted("adapted"), chain("chain");
  adapted.with_yaml(fault_in_step_5(2)).train(2, settings);
  chain.with_yaml(fault_in_step_5(2))
      .train(2, {"model.dropout=0.1", "precision.recipe=delayed", "train.stop_at_step=5"});
  chain.train(2, {"model.dropout=0.1", "checkpoint.allow_changes=true"});
  EXPECT_EQ(finite_losses(adapted), finite_losses(chain));
  EXPECT_EQ(adapted.hashes(20), chain.hashes(20));
}

// A gradient of step 11 is some 10^38 times as large, once, and the decision falls due after step 12, whose checkpoint
// is not good. The run returns to step 9, and goes on in bf16 there. Stopping and resuming anywhere changes
// no bit.
TEST_P(Adaptive, ARollbackIsGoingOnFromTheLastGoodCheckpoint) {
  const int ranks = GetParam();
  const auto settings =
      with(kLadder, {"precision.adaptive.norm_factor=1e6", "precision.adaptive.stable_steps=0",
                     "precision.adaptive.rollback=true", "checkpoint.interval=3", "checkpoint.keep_last=0",
                     fmt::format("test.faults=[{{kind: flip, step: 11, rank: {}, parameter: blocks.0.mlp.up.weight, "
                                 "element: 5, bit: 30}}]",
                                 ranks - 1)});
  ThreadedRun straight = short_sighted(fmt::format("rolled{}", ranks)), chain(fmt::format("rolled_chain{}", ranks));
  const Outcome outcome = straight.train(ranks, settings);
  const auto rollbacks = straight.records("rollback");
  ASSERT_EQ(rollbacks.size(), 1u) << outcome.output;
  EXPECT_EQ(rollbacks[0].at("step"), 9);
  EXPECT_EQ(rollbacks[0].at("from_step"), 12);
  EXPECT_EQ(rollbacks[0].at("skipped_batches"), 0);
  ASSERT_EQ(straight.records("precision").size(), 1u) << outcome.output;
  EXPECT_EQ(straight.records("precision")[0].at("step"), 9);
  EXPECT_EQ(straight.records("precision")[0].at("to_level"), 0);
  EXPECT_NE(outcome.output.find("rolled back from step 12 to step 9, whose steps are trained again"), std::string::npos)
      << outcome.output;
  chain.train(ranks, {"model.dropout=0.1", "precision.recipe=delayed", "train.stop_at_step=9"});
  chain.train(ranks, {"model.dropout=0.1", "checkpoint.allow_changes=true"});
  EXPECT_EQ(straight.losses(), chain.losses());
  EXPECT_EQ(straight.hashes(20), chain.hashes(20));
  for (const int stop : {10, 14}) {
    ThreadedRun halves = short_sighted(fmt::format("rolled_halves{}_{}", stop, ranks));
    halves.train(ranks, with(settings, {fmt::format("train.stop_at_step={}", stop)}));
    halves.train(ranks, settings);
    EXPECT_EQ(straight.hashes(20), halves.hashes(20)) << stop;
    EXPECT_EQ(straight.losses(), halves.losses()) << stop;
  }
}

// A signal that is uneasy after step 4, and again and again: no later checkpoint is good. Without one the run begins
// anew.
TEST(AdaptiveOnce, ARollbackPassesOverUneasyCheckpoints) {
  const auto settings = with(
      kLadder,
      {"precision.adaptive.curvature=1e3", "precision.adaptive.norm_factor=1e6", "precision.adaptive.stable_steps=0",
       "precision.adaptive.rollback=true", "checkpoint.interval=3", "checkpoint.keep_last=0", "probe.enabled=true",
       "test.faults=[{kind: flip, step: 11, rank: 0, parameter: blocks.0.mlp.up.weight, element: 5, bit: 30}]"});
  const auto uneasy = [](AdaptiveOptions& options) {
    options.curvature_interval = 3;
    options.band = 1e-9;
  };
  ThreadedRun run = short_sighted("uneasy", uneasy), plain("uneasy_plain");
  const Outcome outcome = run.train(1, settings);
  const auto rollbacks = run.records("rollback");
  ASSERT_EQ(rollbacks.size(), 1u) << outcome.output;
  EXPECT_EQ(rollbacks[0].at("step"), 3);
  ThreadedRun anew = short_sighted("anew", uneasy);
  anew.train(1, with(settings, {"checkpoint.interval=0"}));
  ASSERT_EQ(anew.records("rollback").size(), 1u);
  EXPECT_EQ(anew.records("rollback")[0].at("step"), 0);
  EXPECT_EQ(anew.records("start").size(), 2u);
  for (const char* const file : {"/metrics.jsonl", "/probes.mtp"}) {
    EXPECT_TRUE(std::filesystem::exists(anew.run_dir() + file));
    EXPECT_FALSE(std::filesystem::exists(anew.run_dir() + file + ".previous"));
  }
  plain.train(1, {"model.dropout=0.1"});
  EXPECT_EQ(anew.losses(), plain.losses());
  EXPECT_EQ(anew.hashes(20), plain.hashes(20));
}

// Measuring changes nothing.
TEST(AdaptiveOnce, WatchingChangesNoBitOfTheTraining) {
  const auto often = [](AdaptiveOptions& options) { options.curvature_interval = options.noise_interval = 3; };
  const ThreadedRun plain("plain"), watched = short_sighted("watched", often);
  plain.train(2, {"precision.recipe=delayed", "model.dropout=0.1"});
  watched.train(2, with(kLadder, {"precision.adaptive.curvature=1e9", "precision.adaptive.gradient_noise=1e9",
                                  "precision.adaptive.warmup=3", "precision.adaptive.loss_roughness=1e9",
                                  "precision.adaptive.loss_rise=1e9", "precision.adaptive.stable_steps=0",
                                  "probe.enabled=true", "probe.interval=7", "precision.adaptive.underflow_share=1"}));
  EXPECT_EQ(finite_losses(plain), finite_losses(watched));
  EXPECT_EQ(plain.hashes(20), watched.hashes(20));
}

// A layer that was lifted stays so on other levels.
TEST(AdaptiveOnce, ALiftSurvivesAChangeOfLevel) {
  ThreadedRun run = short_sighted("lifted");
  const Outcome outcome =
      run.with_yaml(R"(
test:
  activations:
    - {step: 4, rank: 0, layer: blocks.0.mlp.up, op: linear, pass: backward, value: inf}
    - {step: 9, rank: 0, layer: blocks.1.mlp.down, op: linear, value: nan}
)")
          .train(1, with(kLadder, {"precision.adaptive.levels=[{recipe: current}, {recipe: delayed}]",
                                   "precision.adaptive.loss_rise=5", "precision.fallback.overflows=1",
                                   "precision.adaptive.stable_steps=0"}));
  const auto switches = run.records("precision");
  ASSERT_EQ(switches.size(), 2u) << outcome.output;
  EXPECT_EQ(switches[0].at("changes"), nlohmann::json({"layer 'blocks.0.mlp.up': delayed:e4m3 in bf16 -> bf16"}));
  EXPECT_EQ(switches[1].at("step"), 9);
  EXPECT_EQ(switches[1].at("changes"), nlohmann::json({"layer 'blocks.1.mlp.down': delayed:e4m3 in bf16 -> bf16",
                                                       "precision.recipe: delayed -> current"}));
  EXPECT_NE(outcome.output.find("6 of 9 linear layers round operands"), std::string::npos) << outcome.output;
}

TEST(AdaptiveOnce, WhatReadsARunKnowsTheLevelThatItHasComeTo) {
  ThreadedRun run = short_sighted("read");
  run.with_yaml(fault_in_step_5(1)).train(1, with(with(kLadder, kWatchLoss), {"precision.adaptive.stable_steps=0"}));
  const Outcome text = run_verb({"generate", run.run_dir(), "--prompt", "a", "--tokens", "4"});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  const std::string json = run.folder() + "/analysis.json";
  const Outcome analysis = run_verb({"analyze", "model", run.run_dir(), "--batches", "1", "--json", json});
  ASSERT_EQ(analysis.exit_code, 0) << analysis.output;
  EXPECT_TRUE(nlohmann::json::parse(read_file(json)).at("setting").at("recipe").is_null()) << "level 1 has one";
  const Outcome other =
      run_verb({"analyze", "model", run.run_dir(), "precision.recipe=mxfp8", "--batches", "1", "--json", json});
  ASSERT_EQ(other.exit_code, 0) << other.output;
  EXPECT_NE(other.output.find("precision.adaptive of the run is dropped"), std::string::npos) << other.output;
  EXPECT_EQ(nlohmann::json::parse(read_file(json)).at("setting").at("recipe"), "mxfp8");
}

// A level that the model rejects is rejected before the run begins.
TEST(AdaptiveOnce, EveryLevelIsCheckedBeforeTheFirstStep) {
  const ThreadedRun run("refused");
  const Outcome outcome = run.try_train(
      2, {"precision.adaptive.levels=[{compute: bf16}, {recipe: block}]", "precision.adaptive.loss_rise=1"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_NE(outcome.output.find("precision.adaptive.levels[1]"), std::string::npos) << outcome.output;
  EXPECT_TRUE(run.records("start").empty());
}

// A run that is unstable in 8 bits, by nothing but its settings: e4m3 for gradients too, a margin of 13 powers of two,
// which leaves five between the largest number and the smallest, and the largest amax of a long history, which a spike
// of the gradient in the first steps holds up for the whole run. Gradients underflow, and the loss does not get below
// that of single letters. bf16 knows nothing of it.
double last_validation(const SmallRun& run) { return run.records("validation").back().at("loss"); }

TEST(AdaptiveOnce, ARunThatFailsInEightBitsIsRescued) {
  const std::vector<std::string> setting = {
      "train.steps=600",         "train.seed=2",         "train.micro_batch=6",  "train.log_interval=100",
      "train.eval_interval=100", "train.eval_batches=4", "checkpoint.interval=0"};
  const std::vector<std::string> low = {"precision.recipe=delayed:e4m3", "precision.delayed.margin=13"};
  const ThreadedRun bf16("rescue_bf16"), fp8("rescue_fp8"), adaptive("rescue_adaptive");
  bf16.train(1, setting);
  fp8.train(1, with(setting, low));
  const Outcome outcome = adaptive.train(
      1, with(setting, {"precision.adaptive.levels=[{compute: bf16}, {recipe: 'delayed:e4m3', delayed: {margin: 13}}]",
                        "precision.adaptive.start=1", "precision.adaptive.norm_factor=4",
                        "precision.adaptive.underflow_share=0.5", "precision.adaptive.stalled_evaluations=2",
                        "precision.adaptive.min_improvement=0.02", "probe.enabled=true", "probe.interval=10",
                        "probe.rows=128"}));
  EXPECT_LT(last_validation(bf16), 0.7);
  EXPECT_GT(last_validation(fp8), last_validation(bf16) + 1.5);
  EXPECT_LT(last_validation(adaptive), last_validation(bf16) + 0.15) << outcome.output;
  ASSERT_FALSE(adaptive.records("precision").empty());
  EXPECT_LE(adaptive.records("precision")[0].at("step"), 100);
}

}  // namespace
}  // namespace mantissa::testing
