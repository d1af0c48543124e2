// The whole program on a GPU learns as it does on the CPU. The cases run on the emulated GPU, where everything that a
// GPU leaves open is drawn at random, and by tools/gpu_check on a real GPU for all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "tests/program/gpu_run.h"

namespace mantissa::testing {
namespace {

const std::vector<std::string> kFp32 = {"precision.compute=fp32", "comm.wire_dtype=fp32"};

// comm.backend: mpi, since auto would take NCCL where there is one.
std::map<int64_t, double> losses_of(const std::string& name, int ranks, const std::vector<std::string>& settings) {
  const SmallRun run(name);
  run.train(ranks, gpu_settings(with({"comm.backend=mpi"}, settings)));
  return run.losses();
}

// fp32 on both: sums in another order, eps = 6e-8 a sum, which a few steps of AdamW amplify.
TEST(GpuTraining, LearnsInFp32WhatTheCpuLearns) {
  const auto cpu = losses_of("cpu_fp32", 1, with(kFp32, {"device=cpu"}));
  const auto gpu = losses_of("gpu_fp32", 1, kFp32);
  ASSERT_EQ(cpu.size(), 6u);
  EXPECT_LT(cpu.at(6), cpu.at(1));
  EXPECT_LE(largest_difference(cpu, gpu), 1e-5);
}

// 16-bit: each activation is rounded with relative error u = 2^-9 (bf16) or 2^-12 (fp16). Both devices round at the
// same places, but values near a tie fall differently, so the curves differ by a fraction of u times the depth of the
// model.
struct Rounding {
  const char* dtype;
  double u;
};
class GpuTrainingIn : public ::testing::TestWithParam<Rounding> {};

TEST_P(GpuTrainingIn, SixteenBitsLearnsWhatTheCpuLearnsOnTwoRanks) {
  const auto [dtype, u] = GetParam();
  const std::string name = dtype, compute = "precision.compute=" + name;
  const auto cpu = losses_of("cpu_" + name, 2, {"device=cpu", compute});
  const auto gpu = losses_of("gpu_" + name, 2, {compute});
  ASSERT_EQ(cpu.size(), 6u);
  EXPECT_LE(largest_difference(cpu, gpu), 4 * u);
}

INSTANTIATE_TEST_SUITE_P(Dtype, GpuTrainingIn, ::testing::Values(Rounding{"bf16", 0x1p-9}, Rounding{"fp16", 0x1p-12}),
                         [](const auto& info) { return std::string(info.param.dtype); });

// More than any GPU has.
TEST(GpuTraining, AConfigurationThatDoesNotFitIsRefusedWithWhatItNeeds) {
  const SmallRun run("out_of_memory");
  const Outcome outcome =
      run.try_train(1, gpu_settings({"train.micro_batch=1048576", "train.global_batch=1048576", "model.layers=12"}));
  EXPECT_EQ(outcome.exit_code, 8) << outcome.output;
  EXPECT_THAT(outcome.output, ::testing::ContainsRegex("GPU 0 is out of memory: 'step arena' needs [0-9.]+ MiB, "));
}

TEST(GpuTraining, Fp64IsRefusedWithTheWayOut) {
  const Outcome outcome = SmallRun("fp64_refused").try_train(1, gpu_settings({"precision.compute=fp64"}));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_NE(outcome.output.find("is computed only on the CPU, and not by device = cuda"), std::string::npos)
      << outcome.output;
}

// Gradients go through host memory. 16 sequences, which four ranks can share as well.
TEST(GpuTraining, TwoAndFourRanksOnOneGpuLearnWhatOneLearns) {
  const std::vector<std::string> settings =
      with(kFp32, {"train.global_batch=16", "train.steps=4", "optimizer.warmup_steps=1"});
  const auto one = losses_of("one_rank", 1, settings);
  ASSERT_EQ(one.size(), 4u);
  EXPECT_LE(largest_difference(one, losses_of("two_ranks", 2, settings)), 1e-5);
  EXPECT_LE(largest_difference(one, losses_of("four_ranks", 4, settings)), 1e-5);
}

TEST(GpuTraining, TwoAndFourRanksOnOneGpuHoldTheSameWeights) {
  const SmallRun run("rank_weights");
  const std::vector<std::string> settings = {"comm.backend=mpi", "train.global_batch=16", "optimizer.warmup_steps=1"};
  for (const int ranks : {2, 4}) {
    const auto before = weights_of_ranks(run, ranks, gpu_settings(with(settings, {"train.steps=1"})));
    const auto after = weights_of_ranks(run, ranks, gpu_settings(with(settings, {"train.steps=3"})));
    ASSERT_EQ(after.size(), static_cast<size_t>(ranks));
    EXPECT_EQ(after, std::vector<std::string>(after.size(), after[0]));
    EXPECT_NE(before, after);
  }
}

// The host is one step ahead when it learns of the overflow: the step after it is void and runs again, and the run is
// as with a host that waits.
TEST(GpuTraining, AnOverflowIsSkippedReportedAndLeavesTheRunAsOnTheCpu) {
  const auto records_of = [](const std::string& device) {
    SmallRun run("overflow_" + device);
    run.with_yaml("test: {faults: [{step: 2, rank: 1, parameter: blocks.0.mlp.up.weight, element: 7, kind: inf}]}\n");
    run.train(2, gpu_settings({"device=" + device, "comm.backend=mpi", "precision.compute=fp16",
                               "scaler.init_scale=1024", "scaler.growth_interval=2"}));
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
  // The scale was good enough in the step before: the op is looked for, too.
  const auto reason = gpu[1].at("skip_reason").get<std::string>();
  EXPECT_NE(reason.find("the backward pass of op linear of layer 'blocks.0.mlp.up' made 0 NaN and 1 Inf"),
            std::string::npos)
      << reason;
  EXPECT_TRUE(reason.ends_with("gradient blocks.0.mlp.up.weight[7] is Inf on rank 1")) << reason;
}

TEST(GpuTraining, AFaultyLossNamesItsOpAndStopsTheRun) {
  SmallRun run("fault");
  run.with_yaml("test: {activations: [{step: 3, rank: 0, layer: blocks.0.mlp, op: gelu, value: nan}]}\n");
  const Outcome outcome = run.try_train(1, gpu_settings({"comm.backend=mpi", "faults.max_consecutive=1"}));
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  EXPECT_NE(outcome.output.find("op gelu of layer 'blocks.0.mlp'"), std::string::npos) << outcome.output;
}

// With the default way to choose products: it finds the choices of the first run in its file.
TEST(GpuTraining, ResumesBitForBitAndOnAnotherDevice) {
  const auto settings = [](const std::vector<std::string>& more) {
    return gpu_settings(with({"comm.backend=mpi"}, more));
  };
  const SmallRun straight("straight"), halves("halves");
  straight.train(2, settings({}));
  halves.train(2, settings({"train.stop_at_step=3"}));
  halves.train(2, settings({}));
  EXPECT_EQ(halves.losses(), straight.losses());
  EXPECT_EQ(halves.hashes(6), straight.hashes(6));
  const SmallRun moved("moved");
  moved.train(2, settings({"train.stop_at_step=3"}));
  moved.train(1, settings({"device=cpu", "checkpoint.allow_changes=true"}));
  EXPECT_LE(largest_difference(straight.losses(), moved.losses()), 4 * 0x1p-9);
}

// Another choice of products sums in another order: in bf16 the bound above.
TEST(GpuTraining, DeterministicProductsRepeatEveryBitAndTimedOnesDifferByRounding) {
  const std::vector<std::string> settings = {"comm.backend=mpi", "train.steps=4", "optimizer.warmup_steps=1",
                                             "model.dropout=0.1"};
  const SmallRun first("deterministic_1"), again("deterministic_2"), timed("timed");
  first.train(2, gpu_settings(with(settings, {"cuda.gemm=deterministic"})));
  again.train(2, gpu_settings(with(settings, {"cuda.gemm=deterministic"})));
  timed.train(2, gpu_settings(with(settings, {"cuda.gemm=timed"})));
  ASSERT_EQ(first.losses().size(), 4u);
  EXPECT_EQ(first.losses(), again.losses());
  EXPECT_EQ(first.hashes(4), again.hashes(4));
  EXPECT_LE(largest_difference(first.losses(), timed.losses()), 4 * 0x1p-9);
}

// Dropout draws anew in every repetition, evaluation uses the same arena in between, and the first scales overflow.
TEST(GpuTraining, ACapturedStepGivesEveryBitOfAnEagerOne) {
  const auto run_with = [](const char* graph) {
    SmallRun run(std::string("graph_") + graph);
    run.train(1, gpu_settings({"comm.backend=local", std::string("cuda.graph=") + graph, "cuda.gemm=deterministic",
                               "train.global_batch=4", "model.dropout=0.1", "precision.compute=fp16",
                               "scaler.init_scale=16777216", "scaler.growth_interval=2", "train.eval_interval=2",
                               "optimizer.warmup_steps=1"}));
    return run;
  };
  const SmallRun eager = run_with("false"), captured = run_with("true");
  ASSERT_EQ(eager.losses().size(), 6u);
  EXPECT_EQ(captured.losses(), eager.losses());
  EXPECT_EQ(captured.hashes(6), eager.hashes(6));
  const auto skipped = [](const SmallRun& run) {
    std::vector<bool> result;
    for (const auto& record : run.records("step")) result.push_back(!record.at("applied").get<bool>());
    return result;
  };
  EXPECT_EQ(skipped(captured), skipped(eager));
  EXPECT_NE(skipped(eager), std::vector<bool>(6, false));
  EXPECT_NE(skipped(eager), std::vector<bool>(6, true));
}

// Two ranks exchange on a stream of their own, beside the stream that computes.
TEST(GpuTraining, AProfiledRunLearnsTheSameAndTimesBothStreams) {
  const SmallRun plain("not_profiled"), profiled("profiled");
  const std::vector<std::string> settings = {"comm.backend=mpi", "cuda.gemm=deterministic", "train.steps=4",
                                             "optimizer.warmup_steps=1"};
  plain.train(2, gpu_settings(settings));
  const Outcome outcome = profiled.train(2, gpu_settings(with(settings, {"profile=true", "cuda.graph=true"})));
  ASSERT_EQ(plain.losses().size(), 4u);
  EXPECT_EQ(profiled.losses(), plain.losses());
  EXPECT_THAT(outcome.output, ::testing::HasSubstr("profile: true sets cuda.graph: true aside"));
  EXPECT_THAT(outcome.output, ::testing::ContainsRegex("mean of 2 steps, rank 0 \\(.* over 2 ranks\\)\n"));
  EXPECT_THAT(outcome.output, ::testing::ContainsRegex("forward +gemm bf16 +[1-9][0-9.]+ +[0-9.]+"));
  EXPECT_THAT(outcome.output, ::testing::ContainsRegex("backward +beside: all_to_all +[1-9]"));
  for (const char* rank : {"0", "1"}) {
    const std::string trace = read_file(profiled.run_dir() + "/trace_rank" + rank + ".json");
    ASSERT_TRUE(nlohmann::json::accept(trace));
    EXPECT_THAT(trace, ::testing::HasSubstr("beside, stream 1"));
  }
}

TEST(GpuTraining, CapturingTheStepsOfSeveralRanksIsRefused) {
  const SmallRun run("graph_ranks");
  const Outcome outcome = run.try_train(2, gpu_settings({"comm.backend=mpi", "cuda.graph=true"}));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_NE(outcome.output.find("cuda.graph: true captures the steps of several ranks over NCCL only, and these 2"),
            std::string::npos)
      << outcome.output;
}

// Half of the window of 128 steps must be known: a CPU trains so many. The device holds back the update of the spike,
// and of the step that was queued after it. With a checkpoint after each step, the host waits.
TEST(GpuTraining, SpikesAreHeldBackAlikeWhetherTheHostWaitsOrNot) {
  const SmallRun ahead("spikes_ahead"), waits("spikes_waits");
  const std::vector<std::string> settings = gpu_settings(
      {"comm.backend=mpi", "cuda.gemm=deterministic", "train.steps=72", "stop_rules.action=skip",
       "test.faults=[{kind: flip, target: gradient, step: 67, parameter: blocks.0.mlp.up.weight, element: 5, "
       "bit: 30}]"});
  for (const SmallRun* run : {&ahead, &waits}) {
    run->train(1, with(settings, {"device=cpu", "train.stop_at_step=64"}));
  }
  ahead.train(1, settings);
  waits.train(1, with(settings, {"checkpoint.interval=1"}));
  EXPECT_EQ(ahead.losses(), waits.losses());
  EXPECT_EQ(ahead.hashes(72), waits.hashes(72));
  std::vector<bool> applied;
  for (const nlohmann::json& record : ahead.records("step")) applied.push_back(record.at("applied"));
  ASSERT_EQ(applied.size(), 72u);
  std::vector<bool> all_but_the_spike(72, true);
  all_but_the_spike[66] = false;
  EXPECT_EQ(applied, all_but_the_spike);
}

TEST(GpuTraining, GeneratesFromWhatItTrained) {
  const SmallRun run("generate");
  run.train(1, gpu_settings({"comm.backend=mpi", "train.steps=2", "optimizer.warmup_steps=1"}));
  const Outcome outcome = run_program(0, {"generate", run.run_dir(), "--prompt", "the ", "--tokens", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

}  // namespace
}  // namespace mantissa::testing
