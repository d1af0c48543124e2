// The whole program on the CUDA backend, emulated: the same kernels, streams and events as on a GPU, with everything
// that a GPU leaves open drawn at random. What it learns is what the CPU learns.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/tools/train/program.h"

namespace mantissa::testing {
namespace {

// One head of 64: the tensor-core attention.
const std::vector<std::string> kModel = {"model.layers=1", "model.width=64", "model.heads=1", "train.steps=6"};

std::vector<std::string> with(const std::vector<std::string>& more) {
  std::vector<std::string> settings = kModel;
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::map<int64_t, double> losses_of(const std::string& name, int ranks, const std::vector<std::string>& settings) {
  const SmallRun run(name);
  run.train(ranks, with(settings));
  return run.losses();
}

double largest_difference(const std::map<int64_t, double>& a, const std::map<int64_t, double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (const auto& [step, loss] : a) {
    const double difference = std::abs(loss - b.at(step)) / std::abs(loss);
    largest = std::isnan(difference) ? HUGE_VAL : std::max(largest, difference);
  }
  return largest;
}

// fp32 on both: sums in another order, eps = 6e-8 a sum, which a few steps of AdamW amplify.
TEST(EmulatedGpu, LearnsInFp32WhatTheCpuLearns) {
  const std::vector<std::string> fp32 = {"precision.compute=fp32", "comm.wire_dtype=fp32"};
  const auto cpu = losses_of("cpu_fp32", 1, with({"device=cpu", fp32[0], fp32[1]}));
  const auto gpu = losses_of("gpu_fp32", 1, with({"device=cuda", fp32[0], fp32[1]}));
  ASSERT_EQ(cpu.size(), 6u);
  EXPECT_LT(cpu.at(6), cpu.at(1));
  EXPECT_LE(largest_difference(cpu, gpu), 1e-5);
  EXPECT_LE(largest_difference(gpu, losses_of("gpu_fp32_2", 2, with({"device=cuda", fp32[0], fp32[1]}))), 1e-5);
}

// 16-bit: each activation is rounded with relative error u = 2^-9 (bf16) or 2^-12 (fp16). Both devices round at the
// same places, but values near a tie fall differently, so the curves differ by a fraction of u times the depth of the
// model.
TEST(EmulatedGpu, LearnsInSixteenBitsWhatTheCpuLearnsOnTwoRanks) {
  for (const auto& [dtype, u] : {std::pair{"bf16", 0x1p-9}, std::pair{"fp16", 0x1p-12}}) {
    const std::string compute = std::string("precision.compute=") + dtype;
    const auto cpu = losses_of(std::string("cpu_") + dtype, 2, {"device=cpu", compute});
    const auto gpu = losses_of(std::string("gpu_") + dtype, 2, {"device=cuda", compute});
    EXPECT_LE(largest_difference(cpu, gpu), 4 * u) << dtype;
  }
}

TEST(EmulatedGpu, TheOrderOfThreadsAndStreamsChangesNoBit) {
  std::map<std::string, std::string> first;
  for (const char* seed : {"1", "2", "3"}) {
    ASSERT_EQ(setenv("MANTISSA_EMULATION_SEED", seed, 1), 0);
    const SmallRun run(std::string("seed_") + seed);
    run.train(2, with({"device=cuda", "train.steps=3", "optimizer.warmup_steps=1", "model.dropout=0.1"}));
    if (first.empty()) first = run.hashes(3);
    EXPECT_EQ(run.hashes(3), first) << seed;
  }
  ASSERT_EQ(unsetenv("MANTISSA_EMULATION_SEED"), 0);
}

// The host is one step ahead when it learns of the overflow: the step behind is void and runs again, and the run is the
// one of a host that waits.
TEST(EmulatedGpu, AnOverflowIsSkippedReportedAndLeavesTheRunAsOnTheCpu) {
  const auto records_of = [](const char* device) {
    SmallRun run(std::string("overflow_") + device);
    run.with_yaml(
        "test: {gradients: [{step: 2, rank: 1, parameter: blocks.0.mlp.up.weight, element: 7, value: inf}]}\n");
    run.train(2, with({std::string("device=") + device, "precision.compute=fp16", "scaler.init_scale=1024",
                       "scaler.growth_interval=2"}));
    return run.records("step");
  };
  const auto cpu = records_of("cpu"), gpu = records_of("cuda");
  ASSERT_EQ(cpu.size(), 6u);
  ASSERT_EQ(gpu.size(), cpu.size());
  for (size_t index = 0; index < cpu.size(); ++index) {
    for (const char* key : {"step", "applied", "scale", "next_scale", "lr"}) {
      EXPECT_EQ(gpu[index].at(key), cpu[index].at(key)) << key << " of step " << index + 1;
    }
  }
  EXPECT_FALSE(gpu[1].at("applied").get<bool>());
  EXPECT_EQ(gpu[1].at("skip_reason"), "gradient blocks.0.mlp.up.weight[7] is Inf on rank 1");
}

TEST(EmulatedGpu, AFaultyLossNamesItsOpAndStopsTheRun) {
  SmallRun run("fault");
  run.with_yaml("test: {activations: [{step: 3, rank: 0, layer: blocks.0.mlp, op: gelu, value: nan}]}\n");
  const Outcome outcome = run.try_train(1, with({"device=cuda", "faults.max_consecutive=1"}));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  EXPECT_NE(outcome.output.find("op gelu of layer 'blocks.0.mlp'"), std::string::npos) << outcome.output;
}

TEST(EmulatedGpu, ResumesBitForBitAndOnAnotherDevice) {
  const SmallRun straight("straight"), halves("halves");
  straight.train(2, with({"device=cuda"}));
  halves.train(2, with({"device=cuda", "train.stop_at_step=3"}));
  halves.train(2, with({"device=cuda"}));
  EXPECT_EQ(halves.hashes(6), straight.hashes(6));
  const SmallRun moved("moved");
  moved.train(2, with({"device=cuda", "train.stop_at_step=3"}));
  moved.train(1, with({"device=cpu", "checkpoint.allow_changes=true"}));
  EXPECT_LE(largest_difference(straight.losses(), moved.losses()), 4 * 0x1p-9);
}

TEST(EmulatedGpu, GeneratesFromWhatItTrained) {
  const SmallRun run("generate");
  run.train(1, with({"device=cuda", "train.steps=2", "optimizer.warmup_steps=1"}));
  const Outcome outcome = run_program(0, {"generate", run.run_dir(), "--prompt", "the ", "--tokens", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

}  // namespace
}  // namespace mantissa::testing
