// Non-finite gradients and losses in a run of several ranks.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

const std::vector<std::string> kFp16 = {"precision.compute=fp16",   "comm.wire_dtype=fp16", "scaler.init_scale=1024",
                                        "scaler.growth_interval=3", "train.steps=10",       "checkpoint.interval=1",
                                        "checkpoint.keep_last=0"};

constexpr const char* kInfOnRankOne = R"(
test:
  faults: [{step: 4, rank: 1, parameter: blocks.1.mlp.up.weight, element: 77, kind: inf}]
)";

// Step numbers count from 1 in messages and files; injected faults name the step as messages do.
TEST(Overflow, InjectedInfIsSkippedByAllRanksAndTheScaleHalvesThenDoubles) {
  SmallRun run("overflow");
  const Outcome outcome = run.with_yaml(kInfOnRankOne).train(2, kFp16);

  const auto steps = run.records("step");
  ASSERT_EQ(steps.size(), 10u);
  for (const auto& step : steps) EXPECT_EQ(step.at("applied"), step.at("step") != 4) << step;
  // 3 clean steps double the scale; the overflow halves it; 3 clean steps double it again, and again.
  const std::vector<double> scales = {1024, 1024, 1024, 2048, 1024, 1024, 1024, 2048, 2048, 2048};
  for (size_t index = 0; index < scales.size(); ++index) EXPECT_EQ(steps[index].at("scale"), scales[index]) << index;
  EXPECT_EQ(steps[9].at("next_scale"), 4096);

  EXPECT_NE(outcome.output.find(
                "step 4 SKIPPED: gradient blocks.1.mlp.up.weight[77] is Inf on rank 1;\n  scale 2048 -> 1024; "
                "weights unchanged on all ranks"),
            std::string::npos)
      << outcome.output << "\nNothing is hunted: the scale can go down.";
  EXPECT_NE(outcome.output.find("9 done, 1 skipped"), std::string::npos) << outcome.output;

  // Weights and optimizer state of both ranks are untouched by the skipped step, and by it only.
  EXPECT_EQ(run.hashes(3), run.hashes(4));
  EXPECT_NE(run.hashes(4), run.hashes(5));
  const Checkpoint before = open_checkpoint(run.checkpoint_folder(3)),
                   after = open_checkpoint(run.checkpoint_folder(4));
  EXPECT_EQ(before.state.at("applied_steps"), after.state.at("applied_steps"));
  EXPECT_EQ(steps[3].at("lr"), steps[4].at("lr"));  // the schedule waited as well
}

TEST(Overflow, Bf16SkipsWithoutAScale) {
  ThreadedRun run("bf16_skip");
  run.with_yaml(kInfOnRankOne).train(3, {"train.steps=6", "checkpoint.interval=1", "checkpoint.keep_last=0"});
  const auto steps = run.records("step");
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[3].at("applied"), false);
  EXPECT_EQ(steps[3].at("next_scale"), 1.0);
  EXPECT_EQ(run.hashes(3), run.hashes(4));
}

TEST(Overflow, NonFiniteLossIsAFaultThatLeavesTheScaleAlone) {
  ThreadedRun run("loss_fault");
  const Outcome outcome = run.with_yaml(R"(
test:
  activations: [{step: 3, rank: 1, layer: blocks.0.mlp, op: gelu, value: nan}]
)")
                              .train(2, kFp16);
  const auto steps = run.records("step");
  ASSERT_EQ(steps.size(), 10u);
  EXPECT_EQ(steps[2].at("applied"), false);
  EXPECT_TRUE(steps[2].at("loss").is_null());
  EXPECT_EQ(steps[2].at("scale"), steps[2].at("next_scale"));
  EXPECT_NE(outcome.output.find("the loss is not finite: op gelu of layer 'blocks.0.mlp' made 1 NaN and 0 Inf"),
            std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("on rank 1;\n  scale 1024 (non-finite loss)"), std::string::npos) << outcome.output;
}

TEST(Overflow, FaultsInARowEndTheRunWithTheirExitCode) {
  ThreadedRun run("fault_stop");
  const Outcome outcome = run.with_yaml(R"(
test:
  activations:
    - {step: 2, rank: 0, layer: blocks.1.attention, op: attention, value: nan}
    - {step: 3, rank: 0, layer: blocks.1.attention, op: attention, value: nan}
)")
                              .try_train(2, {"faults.max_consecutive=2"});
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  EXPECT_NE(outcome.output.find("stopped after 2 faults in a row, the last in step 3"), std::string::npos)
      << outcome.output;
  EXPECT_EQ(run.records("step").size(), 3u);
}

// Neither kind comes often enough in a row to count, nor does the scale arrive at its floor.
TEST(Overflow, FaultsThatAlternateWithOverflowsEndTheRun) {
  std::string activations, gradients;
  for (int step = 3; step < 20; step += 2) {
    activations +=
        fmt::format("    - {{step: {}, rank: 0, layer: blocks.1.attention, op: attention, value: nan}}\n", step);
    gradients += fmt::format(
        "    - {{step: {}, rank: 1, parameter: blocks.0.attention.qkv.weight, element: 5, kind: inf}}\n", step + 1);
  }
  ThreadedRun run("alternating");
  run.with_yaml("test:\n  activations:\n" + activations + "  faults:\n" + gradients);
  const std::vector<std::string> settings = {"precision.compute=fp16", "scaler.init_scale=1024"};
  // The count goes on over a checkpoint.
  run.train(2, with(settings, {"train.stop_at_step=6"}));
  const Outcome outcome = run.try_train(2, with(settings, {"faults.max_skipped=7"}));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  EXPECT_NE(outcome.output.find("stopped after 7 skipped steps in a row, the last in step 9"), std::string::npos)
      << outcome.output;
  EXPECT_TRUE(run.has_checkpoint(9));
}

// Weights are those of the last good step: they are kept, and a new start goes on after the faults.
TEST(Overflow, AFaultStopSavesWhatWasLearnt) {
  ThreadedRun run("fault_saved");
  run.with_yaml(R"(
test:
  activations:
    - {step: 5, rank: 1, layer: head, op: linear, value: inf}
    - {step: 5, rank: 1, layer: blocks.0.mlp, op: gelu, value: nan}
)");
  const Outcome stopped = run.try_train(2, {"faults.max_consecutive=1"});
  EXPECT_EQ(stopped.exit_code, 5) << stopped.output;
  EXPECT_NE(stopped.output.find("op gelu of layer 'blocks.0.mlp'"), std::string::npos)
      << stopped.output;  // both faults happened
  EXPECT_TRUE(run.has_checkpoint(5));
  run.train(2, {"faults.max_consecutive=1", "train.steps=20"});
  EXPECT_EQ(run.losses().size(), 20u);
  EXPECT_EQ(open_checkpoint(run.checkpoint_folder(20)).state.at("applied_steps"), 19);
}

TEST(Overflow, APlannedFaultThatCannotHappenIsAnError) {
  ThreadedRun run("no_such_layer");
  const Outcome outcome =
      run.with_yaml("test: {activations: [{step: 2, rank: 0, layer: blocks.9, op: gelu, value: nan}]}\n")
          .try_train(1, {});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
}

// PyTorch's scaler has no floor: once 1/scale is not finite neither is the gradient, and every step is skipped.
TEST(Overflow, AScaleWithoutAFloorEndsInSkipsNotInAnError) {
  ThreadedRun run("no_floor");
  const Outcome outcome =
      run.train(1, {"precision.compute=fp16", "scaler.preset=pytorch", "scaler.init_scale=1e-42", "train.steps=5"});
  for (const auto& step : run.records("step")) EXPECT_EQ(step.at("applied"), false) << step;
  EXPECT_NE(outcome.output.find("the loss scale"), std::string::npos) << outcome.output;
}

// The batch's forward pass is finite: the backward pass is hunted for the op that cannot hold the scale.
TEST(Overflow, AScaleThatIsTooLargeIsNamedWithItsOp) {
  for (const int ranks : {1, 2}) {
    const ThreadedRun run("scale_" + std::to_string(ranks));
    const Outcome outcome = run.try_train(
        ranks, {"precision.compute=fp16", "scaler.mode=static", "scaler.init_scale=1e12", "scaler.max_scale=1e12"});
    EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
    for (const char* part :
         {"the gradient is not finite with the loss scale 1e+12: the backward pass of op cross_entropy of the model",
          " Inf in the gradient of linear of 'head' (",
          "; made of the gradient of cross_entropy of the model (fp32, magnitudes ",
          "; the op's inputs: linear of 'head' (", " on rank 0; ", "a new start continues after step 3",
          "the loss scale 1e+12 may be too large: lower scaler.init_scale, or give scaler.mode=dynamic; "}) {
      EXPECT_NE(outcome.output.find(part), std::string::npos) << part << "\n" << outcome.output;
    }
  }
}

// A scale that cannot be lowered further makes overflow a fault.
TEST(Overflow, AtTheFloorOverflowBecomesAFault) {
  ThreadedRun run("floor");
  const Outcome outcome = run.with_yaml(R"(
test:
  faults:
    - {step: 1, rank: 0, parameter: final_norm.weight, element: 0, kind: inf}
    - {step: 2, rank: 1, parameter: final_norm.weight, element: 1, kind: nan}
)")
                              .try_train(2, {"precision.compute=fp16", "scaler.init_scale=2", "scaler.min_scale=1",
                                             "faults.max_consecutive=1"});
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  const auto steps = run.records("step");
  ASSERT_EQ(steps.size(), 2u) << outcome.output;
  EXPECT_EQ(steps[0].at("next_scale"), 1.0);
  EXPECT_NE(outcome.output.find("gradient final_norm.weight[1] is NaN on rank 1"), std::string::npos) << outcome.output;
}

// The same scale was good enough one step before: it need not be the scale, and the op is looked for. It goes down all
// the same.
TEST(Overflow, ANaNUnderAScaleThatWasGoodEnoughIsHunted) {
  for (const int ranks : {1, 2}) {
    ThreadedRun run("hunted" + std::to_string(ranks));
    const Outcome outcome = run.with_yaml(fmt::format(R"(
test:
  activations: [{{step: 3, rank: {}, layer: blocks.1.mlp.up, op: linear, pass: backward, value: nan}}]
)",
                                                      ranks - 1))
                                .train(ranks, {"precision.compute=fp16", "scaler.init_scale=1024", "train.steps=5"});
    EXPECT_NE(outcome.output.find("step 3 SKIPPED: the gradient is not finite with the loss scale 1024: the backward "
                                  "pass of op linear of layer 'blocks.1.mlp.up' made 1 NaN"),
              std::string::npos)
        << outcome.output;
    EXPECT_NE(outcome.output.find("scale 1024 -> 512"), std::string::npos) << outcome.output;
  }
}

// Overflow at a floor that clamps is no fault, but it is examined alike.
TEST(Overflow, AtAFloorThatClampsTheOpIsNamed) {
  ThreadedRun run("clamped");
  const Outcome outcome = run.with_yaml(R"(
test:
  activations: [{step: 1, rank: 0, layer: blocks.0.mlp, op: gelu, pass: backward, value: nan}]
)")
                              .train(1, {"precision.compute=fp16", "scaler.init_scale=1", "scaler.floor=clamp",
                                         "train.steps=5", "faults.max_consecutive=1"});
  EXPECT_NE(outcome.output.find("the backward pass of op gelu of layer 'blocks.0.mlp' made 1 NaN"), std::string::npos)
      << outcome.output;
}

// DeepSpeed raises at the first overflow that finds its scale at the floor and its hysteresis used up.
TEST(Overflow, ThePresetDeepspeedStopsAtTheFloorAtOnce) {
  for (const char* preset : {"deepspeed", "megatron"}) {
    ThreadedRun run(std::string("floor_") + preset);
    const Outcome outcome = run.with_yaml(R"(
test:
  faults:
    - {step: 2, rank: 0, parameter: final_norm.weight, element: 1, kind: inf}
    - {step: 3, rank: 0, parameter: final_norm.weight, element: 1, kind: inf}
)")
                                .try_train(1, {"precision.compute=fp16", std::string("scaler.preset=") + preset,
                                               "scaler.init_scale=1", "train.steps=5"});
    const bool stops = preset == std::string("deepspeed");
    EXPECT_EQ(outcome.exit_code, stops ? 5 : 0) << outcome.output;
    EXPECT_EQ(run.records("step").size(), stops ? 3u : 5u) << "the overflow of step 2 uses hysteresis up";
    EXPECT_EQ(outcome.output.find("stopped in step 3: the gradient is not finite") != std::string::npos, stops)
        << outcome.output;
  }
}

// The loss belongs to no layer, and a block adds twice.
TEST(Overflow, OpsThatShareALayerAreToldApart) {
  ThreadedRun run("told_apart");
  const Outcome outcome = run.with_yaml(R"(
test:
  activations:
    - {step: 2, rank: 0, layer: "", op: cross_entropy, value: nan}
    - {step: 4, rank: 0, layer: blocks.1, op: add, pass: backward, value: nan}
)")
                              .train(1, {"train.steps=5"});
  EXPECT_NE(outcome.output.find("step 2 SKIPPED: the loss is not finite: op cross_entropy of the model made 1 NaN"),
            std::string::npos)
      << outcome.output;
  EXPECT_NE(
      outcome.output.find("the backward pass of op add (number 2) of layer 'blocks.1' made 1 NaN and 0 Inf in the "
                          "gradient of add of 'blocks.1'"),
      std::string::npos)
      << outcome.output;
}

// Such an update used to count as applied, and its checkpoints replaced the good ones.
TEST(Overflow, AnUpdateThatLeavesNonFiniteMastersIsNotSavedAndEndsTheRun) {
  for (const int interval : {1, 0}) {  // found before the checkpoint of step 5, or by the verdict of step 6
    ThreadedRun run("non_finite_masters" + std::to_string(interval));
    run.train(2, {"train.stop_at_step=4", "checkpoint.interval=2"});
    const Outcome outcome =
        run.try_train(2, {"optimizer.lr=3e38", "checkpoint.allow_changes=true", "checkpoint.keep_last=1",
                          "checkpoint.interval=" + std::to_string(interval)});
    EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
    EXPECT_NE(outcome.output.find(interval == 1 ? "stopped after step 5: " : "stopped in step 6: "), std::string::npos)
        << outcome.output;
    EXPECT_NE(outcome.output.find("masters or moments are not finite, which no later step repairs: the master of "
                                  "'token_embedding.weight' is "),
              std::string::npos)
        << outcome.output;
    EXPECT_NE(outcome.output.find("not saved: its state is not finite"), std::string::npos) << outcome.output;
    EXPECT_TRUE(run.has_checkpoint(4)) << outcome.output;
    for (const int64_t step : {5, 6}) EXPECT_FALSE(run.has_checkpoint(step)) << outcome.output;
    // It continues from the good checkpoint.
    run.train(2, {"train.stop_at_step=8"});
    EXPECT_EQ(run.losses().size(), 8u);
  }
}

// Second moments of Inf used to stop their weights without a word.
TEST(Overflow, SecondMomentsThatOverflowEndTheRun) {
  const ThreadedRun run("infinite_moments");
  const Outcome outcome = run.try_train(
      2, {"precision.compute=fp32", "model.init_stddev=1e22", "optimizer.clip.mode=none", "train.steps=5"});
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  EXPECT_NE(outcome.output.find("the second moment v of '"), std::string::npos) << outcome.output;
  for (int64_t step = 0; step <= 5; ++step) EXPECT_FALSE(run.has_checkpoint(step)) << step;
}

TEST(Overflow, CheckpointsOfARunThatHasGoneWrongLeaveTheLastGoodOne) {
  std::string faults;
  for (int step = 4; step <= 9; ++step) {
    faults += fmt::format("    - {{step: {}, rank: 1, layer: head, op: linear, value: inf}}\n", step);
  }
  ThreadedRun run("good_one_stays");
  run.with_yaml("test:\n  activations:\n" + faults);
  for (const int64_t last : {6, 9}) {  // a start from a checkpoint proves nothing
    const Outcome outcome = run.try_train(2, {"checkpoint.interval=1", "checkpoint.keep_last=1"});
    EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
    EXPECT_TRUE(run.has_checkpoint(2)) << "a clean step has started from it";
    EXPECT_FALSE(run.has_checkpoint(3)) << "none has";
    EXPECT_TRUE(run.has_checkpoint(last)) << outcome.output;
  }
}

}  // namespace
}  // namespace mantissa::testing
