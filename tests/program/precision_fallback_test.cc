// Layers that overflow repeatedly are lifted, alone, on all ranks in the same step, and training goes on.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

const std::vector<std::string> kFallback = {"precision.recipe=delayed", "precision.fallback.overflows=2",
                                            "precision.fallback.clean_steps=6", "model.dropout=0.1"};

// In steps 3 and 5, on the last rank alone.
std::string overflows_in(const std::string& layer, int ranks) {
  std::string yaml = "\ntest:\n  activations:\n";
  for (const int step : {3, 5}) {
    yaml += fmt::format("    - {{step: {}, rank: {}, layer: {}, op: linear, pass: backward, value: inf}}\n", step,
                        ranks - 1, layer);
  }
  return yaml;
}

class Fallback : public ::testing::TestWithParam<int> {};

TEST_P(Fallback, LiftsTheLayerAloneAndGoesBackAfterCleanSteps) {
  const int ranks = GetParam();
  ThreadedRun run("lifted" + std::to_string(ranks), ranks == 2 ? Ranks::kProcesses : Ranks::kThreads);
  const Outcome outcome = run.with_yaml(overflows_in("blocks.1.mlp.up", ranks))
                              .train(ranks, with(kFallback, {"checkpoint.interval=5", "checkpoint.keep_last=0"}));
  EXPECT_TRUE(run.has_checkpoint(5)) << "what is due after the step that lifts a layer is done";
  const auto switches = run.records("precision");
  ASSERT_EQ(switches.size(), 2u) << outcome.output;
  EXPECT_EQ(switches[0].at("step"), 5);
  EXPECT_EQ(switches[0].at("cause"), "overflow of layer 'blocks.1.mlp.up' in step 5");
  EXPECT_EQ(switches[0].at("changes"), nlohmann::json({"layer 'blocks.1.mlp.up': delayed:e4m3 in bf16 -> bf16"}));
  EXPECT_NE(outcome.output.find("7 of 9 linear layers round operands"), std::string::npos) << outcome.output;
  // Clean are steps 6 to 11.
  EXPECT_EQ(switches[1].at("step"), 11);
  EXPECT_EQ(switches[1].at("cause"), "precision.fallback.clean_steps");
  const auto steps = run.records("step");
  ASSERT_EQ(steps.size(), 20u);
  for (const auto& step : steps) EXPECT_EQ(step.at("applied"), step.at("step") != 3 && step.at("step") != 5) << step;
}

// Before a lift, between the two overflows, right after the lift, right before and after the return.
TEST_P(Fallback, StoppedAndResumedAnywhereEqualsTheWholeBitForBit) {
  const int ranks = GetParam();
  ThreadedRun straight("straight" + std::to_string(ranks));
  straight.with_yaml(overflows_in("blocks.0.attention.qkv", ranks)).train(ranks, kFallback);
  for (const int stop : {4, 5, 8, 11, 12}) {
    ThreadedRun halves(fmt::format("halves{}_{}", stop, ranks));
    halves.with_yaml(overflows_in("blocks.0.attention.qkv", ranks))
        .train(ranks, with(kFallback, {"train.stop_at_step=" + std::to_string(stop)}));
    halves.train(ranks, kFallback);
    EXPECT_EQ(straight.losses(), halves.losses()) << stop;
    EXPECT_EQ(straight.hashes(20), halves.hashes(20)) << stop;
    EXPECT_EQ(open_checkpoint(straight.checkpoint_folder(20)).state.at("run"),
              open_checkpoint(halves.checkpoint_folder(20)).state.at("run"))
        << stop;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Fallback, ::testing::Values(1, 2));

// The gradient that the loss gives the logits has the head's precision: it is the head that is lifted.
TEST(FallbackOnce, TheLayerWhosePrecisionTheTensorHasIsLifted) {
  ThreadedRun run("head");
  const Outcome outcome = run.train(1, {"precision.compute=fp16", "scaler.mode=static", "scaler.init_scale=1e7",
                                        "scaler.max_scale=1e7", "precision.fallback.overflows=1"});
  const auto switches = run.records("precision");
  ASSERT_FALSE(switches.empty()) << outcome.output;
  EXPECT_EQ(switches[0].at("changes"), nlohmann::json({"layer 'head': fp16 -> bf16"})) << outcome.output;
  EXPECT_EQ(run.records("step").size(), 20u);
  EXPECT_EQ(run.records("step").back().at("applied"), true) << outcome.output;
}

TEST(FallbackOnce, AtTheFloorOfTheScaleTheConfiguredChoiceIsTaken) {
  const std::vector<std::string> at_floor = {"precision.compute=fp16", "scaler.init_scale=1",
                                             "faults.max_consecutive=1"};
  const std::string fault = R"(
test:
  activations: [{step: 4, rank: 0, layer: blocks.0.mlp.down, op: linear, pass: backward, value: inf}]
)";
  ThreadedRun stop("stop"), lift("lift"), bf16("bf16");
  EXPECT_EQ(stop.with_yaml(fault).try_train(1, at_floor).exit_code, 5);

  lift.with_yaml(fault).train(1, with(at_floor, {"scaler.floor=lift"}));
  ASSERT_EQ(lift.records("precision").size(), 1u);
  EXPECT_EQ(lift.records("precision")[0].at("changes"), nlohmann::json({"layer 'blocks.0.mlp.down': fp16 -> bf16"}));

  bf16.with_yaml(fault).train(2, with(at_floor, {"scaler.floor=bf16"}));
  ASSERT_EQ(bf16.records("precision").size(), 1u);
  EXPECT_EQ(bf16.records("precision")[0].at("cause"), "scaler.floor = bf16 after step 4");
  EXPECT_EQ(bf16.records("step").size(), 20u);
}

// As many faults in a row as end a run, the last of which lifts the layer: the run has a new chance.
TEST(FallbackOnce, ALiftIsANewChance) {
  ThreadedRun run("chance");
  run.with_yaml(R"(
test:
  activations:
    - {step: 3, rank: 0, layer: blocks.1.mlp.up, op: linear, value: nan}
    - {step: 4, rank: 0, layer: blocks.1.mlp.up, op: linear, value: nan}
)")
      .train(1, {"precision.fallback.overflows=2", "faults.max_consecutive=2"});
  ASSERT_EQ(run.records("precision").size(), 1u);
  EXPECT_EQ(run.records("precision")[0].at("changes"), nlohmann::json({"layer 'blocks.1.mlp.up': bf16 -> fp32"}));
}

}  // namespace
}  // namespace mantissa::testing
