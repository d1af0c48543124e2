// The number of ranks, the wire and the sharding do not change what is learnt.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <cmath>

#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

std::map<int64_t, double> losses_of(const std::string& name, int count, std::vector<std::string> settings,
                                    Ranks ranks = Ranks::kThreads) {
  const ThreadedRun run(name, ranks);
  settings.push_back("train.steps=50");
  run.train(count, settings);
  return run.losses();
}

// Two fp32 runs that sum in another order differ by rounding, eps = 6e-8 a sum, which 50 steps of AdamW amplify.
TEST(RankParity, Fp32WireGivesTheSameLossesOnOneTwoAndThreeRanks) {
  const std::vector<std::string> fp32 = {"precision.compute=fp32", "comm.wire_dtype=fp32"};
  const auto one = losses_of("fp32_1", 1, fp32);
  ASSERT_EQ(one.size(), 50u);
  EXPECT_LT(one.at(50), 0.8 * one.at(1));  // it does learn
  EXPECT_LE(largest_difference(one, losses_of("fp32_2", 2, fp32, Ranks::kProcesses)), 1e-5);
  EXPECT_LE(largest_difference(one, losses_of("fp32_3", 3, fp32, Ranks::kProcesses)), 1e-5);
}

// The same in fp64, eps = 1e-16: nothing on the way of losses, gradients and weights is rounded to fp32. fp32's own
// rounding shows against it.
TEST(RankParity, Fp64RoundsNothingOnOneAndTwoRanks) {
  const std::vector<std::string> fp64 = {"precision.compute=fp64"};
  const auto one = losses_of("fp64_1", 1, fp64);
  ASSERT_EQ(one.size(), 50u);
  EXPECT_LE(largest_difference(one, losses_of("fp64_2", 2, fp64, Ranks::kProcesses)), 1e-13);
  EXPECT_LE(largest_difference(one, losses_of("fp64_2_replicated", 2, with(fp64, {"optimizer.sharding=replicated"}))),
            1e-13);
  const auto fp32 = losses_of("against_fp64", 1, {"precision.compute=fp32"});
  EXPECT_GT(largest_difference(fp32, one), 1e-8);
  EXPECT_LT(largest_difference(fp32, one), 1e-5);
}

TEST(RankParity, OneRankUnderMpirunLearnsWhatItLearnsAlone) {
  const ThreadedRun alone("alone"), started("started");
  alone.train(1, {"train.steps=6"});
  const Outcome outcome =
      run_under_mpirun(1, command_line("tools/mantissa_cpu", {"train", started.config_path(), "train.steps=6"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("1 rank (mpi)"), std::string::npos) << outcome.output;
  EXPECT_EQ(started.hashes(6), alone.hashes(6));
}

// Each contribution is rounded once, with relative error at most u = 2^-9 (bf16) or 2^-12 (fp16), unbiased. AdamW
// divides by the gradient's own magnitude, so an update is off by about u of its size, and the loss, which falls by
// about half its value in these steps, by about u of itself. Bound: 4 u, since small elements, whose sign may turn,
// move by the whole step.
TEST(RankParity, SixteenBitWiresStayWithinTheirRounding) {
  const auto exact = losses_of("wire_fp32", 2, {"precision.compute=fp32", "comm.wire_dtype=fp32"});
  const auto bf16 = losses_of("wire_bf16", 2, {"precision.compute=fp32", "comm.wire_dtype=bf16"}, Ranks::kProcesses);
  const auto fp16 = losses_of("wire_fp16", 3, {"precision.compute=fp32", "comm.wire_dtype=fp16"});
  EXPECT_GT(largest_difference(exact, bf16), 0.0);  // the wire is really used
  EXPECT_GT(largest_difference(exact, fp16), 0.0);
  EXPECT_LE(largest_difference(exact, bf16), 4 * std::ldexp(1.0, -9));
  EXPECT_LE(largest_difference(exact, fp16), 4 * std::ldexp(1.0, -12));
}

TEST(RankParity, AccumulationInTheWireDtypeStaysClose) {
  const auto exact = losses_of("acc_fp32", 3, {"precision.compute=fp32", "comm.wire_dtype=fp32"});
  const auto wire =
      losses_of("acc_wire", 3, {"precision.compute=fp32", "comm.wire_dtype=bf16", "comm.accumulate=wire"});
  EXPECT_GT(largest_difference(exact, wire), 0.0);
  EXPECT_NE(wire, losses_of("acc_bf16", 3, {"precision.compute=fp32", "comm.wire_dtype=bf16"}));  // not the fp32 sum
  EXPECT_LE(largest_difference(exact, wire), 8 * std::ldexp(1.0, -9));  // rounded again after each addition
}

// 4 -> 3 -> 1 -> 2 processes: the weights of an uninterrupted run, and of a single process with four lanes.
TEST(RankParity, ARunGoesOnWithOtherRanksToTheSameBits) {
  const std::vector<std::string> settings = {"precision.compute=bf16", "train.global_batch=8", "model.dropout=0.1",
                                             "train.eval_interval=4"};
  const SmallRun whole("lanes_whole"), alone("lanes_alone"), elastic("lanes_elastic");
  whole.train(4, with(settings, {"train.steps=8"}));
  alone.train(1, with(settings, {"train.steps=8", "train.lanes=4"}));
  for (const auto& [ranks, stop] : {std::pair{4, 2}, {3, 4}, {1, 6}, {2, 8}}) {
    const std::string exchange = ranks == 2 ? "halving" : "auto";
    const Outcome outcome = elastic.train(
        ranks,
        with(settings, {"train.steps=8", fmt::format("train.stop_at_step={}", stop), "comm.exchange=" + exchange}));
    EXPECT_NE(outcome.output.find("= 4 lanes x 1 micro-batch x 2"), std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find("its bits are not"), std::string::npos) << outcome.output;
  }
  for (const SmallRun* const run : {&alone, &elastic}) {
    EXPECT_EQ(run->hashes(8).at("model.safetensors"), whole.hashes(8).at("model.safetensors")) << run->folder();
    EXPECT_EQ(run->losses(), whole.losses()) << run->folder();
  }
}

TEST(RankParity, MoreRanksThanLanesAreToldThatTheirBitsAreOthers) {
  const SmallRun run("lanes_more");
  run.train(1, {"train.steps=8", "train.stop_at_step=2"});
  const Outcome outcome = run.train(2, {"train.steps=8"});
  EXPECT_NE(outcome.output.find("the run had 1 lane and has 2 from here on"), std::string::npos) << outcome.output;
  const Outcome refused = run.try_train(2, {"train.steps=8", "train.lanes=1", "checkpoint.resume=none"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.output.find("train.lanes = 1"), std::string::npos) << refused.output;
}

// Ranks of one machine share memory, say so, and take the predicted memory.
TEST(RankParity, RanksOfOneNodeShareGradientsAndWeights) {
  const auto logged = [](const std::string& sharding) {
    const SmallRun run("one_node_" + sharding);
    std::string output =
        run.train(2, {"train.steps=6", "comm.wire_dtype=bf16", "optimizer.sharding=" + sharding}).output;
    expect_predicted_memory(run, {"weights", "gradients", "masters", "moments"});
    return output;
  };
  const std::string sharded = logged("sharded"), replicated = logged("replicated");
  EXPECT_NE(sharded.find("gradients are summed where they lie, in shared memory, weights have one copy in common"),
            std::string::npos)
      << sharded;
  EXPECT_NE(replicated.find("gradients are summed where they lie, in shared memory, weights are updated by every rank"),
            std::string::npos)
      << replicated;
}

TEST(RankParity, ReplicatedOptimizerEqualsShardedBitForBitOnAnFp32Wire) {
  const auto sharded = losses_of("sharded", 2, {"comm.wire_dtype=fp32", "optimizer.sharding=sharded"});
  const auto replicated = losses_of("replicated", 2, {"comm.wire_dtype=fp32", "optimizer.sharding=replicated"});
  EXPECT_EQ(sharded, replicated);
}

// The record of the hash, which the log has, too.
nlohmann::json hash_of(const SmallRun& run, const Outcome& outcome) {
  const auto records = run.records("hash");
  if (records.empty()) return nullptr;
  EXPECT_EQ(records.back().at("step"), run.losses().rbegin()->first);
  for (const char* const kind : {"weights", "state"}) {
    const auto hash = records.back().at(kind).get<std::string>();
    EXPECT_EQ(hash.size(), 16u);
    EXPECT_NE(outcome.output.find(hash), std::string::npos) << outcome.output;
  }
  return {records.back().at("weights"), records.back().at("state")};
}

TEST(RankParity, TheHashAtTheEndIsThatOfTheBits) {
  const auto hash = [](const std::string& name, const std::vector<std::string>& settings) {
    const ThreadedRun run("hash_" + name);
    const Outcome outcome = run.train(2, with({"train.steps=6", "comm.wire_dtype=fp32"}, settings));
    return hash_of(run, outcome);
  };
  const auto sharded = hash("sharded", {});
  EXPECT_EQ(hash("replicated", {"optimizer.sharding=replicated"}), sharded);
  EXPECT_EQ(hash("small_buckets", {"comm.bucket_mib=0.01"}), sharded);
  const auto other = hash("seed", {"train.seed=2"});
  EXPECT_NE(other[0], sharded[0]);
  EXPECT_NE(other[1], sharded[1]);
  const ThreadedRun resumed("hash_resumed");
  const Outcome first = resumed.train(2, {"train.steps=6", "comm.wire_dtype=fp32", "train.stop_at_step=3"});
  EXPECT_NE(hash_of(resumed, first), sharded);
  const Outcome second = resumed.train(2, {"train.steps=6", "comm.wire_dtype=fp32"});
  EXPECT_EQ(hash_of(resumed, second), sharded);
}

TEST(RankParity, DropoutDoesNotDependOnTheNumberOfRanks) {
  const std::vector<std::string> settings = {"precision.compute=fp32", "comm.wire_dtype=fp32", "model.dropout=0.2"};
  const auto one = losses_of("dropout_1", 1, settings);
  EXPECT_LE(largest_difference(one, losses_of("dropout_3", 3, settings)), 1e-5);
  const auto without = losses_of("dropout_0", 1, {"precision.compute=fp32", "comm.wire_dtype=fp32"});
  EXPECT_GT(largest_difference(one, without), 1e-3);  // it does drop something
}

// Masked tokens are counted over the global batch: uneven counts on the ranks must not weigh.
TEST(RankParity, EncoderWithMaskedTokens) {
  const std::vector<std::string> settings = {"precision.compute=fp32", "comm.wire_dtype=fp32", "model.name=encoder",
                                             "model.vocab=257"};
  EXPECT_LE(largest_difference(losses_of("encoder_1", 1, settings), losses_of("encoder_2", 2, settings)), 1e-5);
}

}  // namespace
}  // namespace mantissa::testing
