// Gathers of weights as 8-bit codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "comm/coded_gather.h"
#include "comm/communicator.h"
#include "comm/flat_buckets.h"
#include "comm/local/local_communicator.h"
#include "comm/sharded_state.h"
#include "tests/comm/predicted_memory.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

constexpr TensorFormat kDelayed{Format::kE4M3, Scaling::kDelayed};

LinearFormats formats(std::optional<TensorFormat> forward, std::optional<TensorFormat> backward) {
  LinearFormats formats;
  formats.set(Product::kForward, Role::kWeight, forward);
  formats.set(Product::kInputGradient, Role::kWeight, backward);
  return formats;
}

std::optional<Format> format_with(const LinearFormats& linear, DType dtype = DType::kBF16,
                                  ParameterRole role = ParameterRole::kOther, Shape shape = {8, 8}) {
  ParameterSet parameters;
  Parameter& parameter = parameters.add("layer.weight", shape, {});
  parameter.working_dtype = dtype;
  parameter.role = role;
  Precision precision;
  precision.linear = linear;
  const CodedWeights coded = coded_weights(parameters, UniformPrecision(precision));
  return coded.empty() ? std::nullopt : coded[0];
}

TEST(CodedWeights, AreThoseThatBothProductsRoundAlike) {
  EXPECT_EQ(format_with(formats(kDelayed, kDelayed)), Format::kE4M3);
  const TensorFormat e5m2{Format::kE5M2, Scaling::kDelayed};
  EXPECT_EQ(format_with(formats(e5m2, e5m2)), Format::kE5M2);
  EXPECT_EQ(format_with(formats(kDelayed, e5m2)), std::nullopt);
  EXPECT_EQ(format_with(formats(kDelayed, std::nullopt)), std::nullopt);
  EXPECT_EQ(format_with(formats(std::nullopt, kDelayed)), std::nullopt);
  EXPECT_EQ(format_with({}), std::nullopt);
}

TEST(CodedWeights, NeedScalesThatAreKnownBefore) {
  for (const Scaling scaling : {Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro}) {
    const TensorFormat format{Format::kE4M3, scaling};
    EXPECT_EQ(format_with(formats(format, format)), std::nullopt) << name(scaling);
  }
}

TEST(CodedWeights, AreMatricesOfLinearLayersInBf16) {
  const LinearFormats rounded = formats(kDelayed, kDelayed);
  for (const DType dtype : {DType::kF32, DType::kF16}) EXPECT_EQ(format_with(rounded, dtype), std::nullopt);
  EXPECT_EQ(format_with(rounded, DType::kBF16, ParameterRole::kEmbedding), std::nullopt);
  EXPECT_EQ(format_with(rounded, DType::kBF16, ParameterRole::kOther, {64}), std::nullopt);
}

// 8-bit codes do not change the operands of products, and all ranks hold the same weights.

using testing::CodedRank;
using testing::CodedRun;
using testing::gradient_of;
using testing::widened;

UpdateDecision decision_of(StepOutcome outcome, bool held = false) {
  UpdateDecision decision;
  decision.outcome = outcome;
  decision.held = held;
  return decision;
}

// One rank's values over some steps: calibration, an update, an overflow, the held step after it and its repetition,
// and two more.
struct Seen {
  std::vector<std::vector<BFloat16>> operands;  // of each pass
  std::vector<DelayedScales::State> scales;     // after each pass
  std::vector<uint64_t> weights;
  std::vector<std::vector<float>> state;  // this rank's masters, or weights that are their own state, at the end
};

Seen train(CodedRank& rank) {
  Seen seen;
  const auto note = [&] {
    seen.scales.push_back(rank.scales.state());
    seen.weights.push_back(rank.hash());
  };
  rank.optimizer.initialize(5);
  rank.calibrate();
  note();
  int step = 0;
  const UpdateDecision clean, overflow = decision_of(StepOutcome::kGradientOverflow),
                              held = decision_of(StepOutcome::kClean, true);
  for (const UpdateDecision& decision : {clean, overflow, held, clean, clean}) {
    seen.operands.push_back(rank.pass());
    if (step == 3) {  // a fault search repeats the passes; the next amaxes must not include them
      rank.scales.forget_records();
      seen.operands.push_back(rank.pass());
    }
    rank.finish_step(gradient_of(step++), decision);
    note();
  }
  seen.operands.push_back(rank.pass());
  for (const StatePiece& piece : rank.optimizer.pieces()) {
    seen.state.push_back(widened(piece.master.defined() ? piece.master : piece.weight));
  }
  return seen;
}

std::vector<Seen> train(int ranks, const CodedRun& run) {
  std::vector<Seen> seen(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& communicator) {
    CodedRank rank(communicator, run);
    ASSERT_EQ(rank.coded.size(), static_cast<size_t>(rank.parameters.size()));
    seen[static_cast<size_t>(communicator.rank())] = train(rank);
  });
  return seen;
}

void expect_same_training(int ranks, CodedRun run) {
  const std::vector<Seen> coded = train(ranks, run);
  run.gather = WeightGather::kWorking;
  const std::vector<Seen> working = train(ranks, run);
  for (size_t rank = 0; rank < coded.size(); ++rank) {
    ASSERT_FALSE(coded[rank].operands.empty());
    EXPECT_EQ(coded[rank].weights, coded[0].weights) << "all ranks hold the same weights";
    EXPECT_TRUE(coded[rank].operands == working[rank].operands);
    EXPECT_TRUE(coded[rank].scales == working[rank].scales);
    EXPECT_TRUE(coded[rank].state == working[rank].state);
    // Stored numbers differ, so the weights were rounded.
    EXPECT_EQ(coded[rank].weights.back() == working[rank].weights.back(), ranks == 1);
    EXPECT_EQ(coded[rank].weights[0], working[rank].weights[0]) << "initial weights are as they are";
    EXPECT_EQ(coded[rank].weights[3], coded[rank].weights[2]) << "a step that is held changes nothing";
    EXPECT_NE(coded[rank].operands[0], coded[rank].operands[1]) << "the step changed the operands";
  }
}

class CodedGatherOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(CodedGatherOnRanks, LeavesEveryOperandAsItIs) {
  for (const Format format : {Format::kE4M3, Format::kE5M2}) {
    for (const AmaxChoice choice : {AmaxChoice::kMax, AmaxChoice::kMostRecent}) {
      expect_same_training(GetParam(), {.format = format, .delayed = {.history = 2, .choice = choice}});
    }
  }
}

// Scales that are too large for the next weights (they saturate) or too small (most become subnormal).
TEST_P(CodedGatherOnRanks, LeavesOperandsThatSaturateOrVanishAsTheyAre) {
  expect_same_training(GetParam(), {.delayed = {.history = 1, .margin = 0}});
  expect_same_training(GetParam(), {.delayed = {.history = 1, .margin = 13}});
}

TEST_P(CodedGatherOnRanks, WorksWithEveryWayToKeepWeights) {
  CodedRun run;
  run.adamw.weight_rounding = WeightRounding::kStochastic;
  expect_same_training(GetParam(), run);
  run.adamw.weight_rounding = WeightRounding::kNearest;
  for (const MasterWeights master : {MasterWeights::kNoneStochastic, MasterWeights::kKahan}) {
    run.adamw.master = master;
    expect_same_training(GetParam(), run);
  }
  run.adamw.first_moment = run.adamw.second_moment = MomentFormat::kBlockwise8Bit;
  expect_same_training(GetParam(), run);
}

TEST_P(CodedGatherOnRanks, TakesTheMemoryThatIsPlanned) {
  run_ranks(GetParam(), [](Communicator& communicator) {
    for (const WeightGather gather : {WeightGather::kWorking, WeightGather::kF8}) {
      CodedRank rank(communicator, {.gather = gather});
      const CodedWeights coded = gather == WeightGather::kF8 ? rank.coded : CodedWeights();
      const StateMemory measured = measure_memory(*rank.buckets, *rank.reducer, rank.optimizer);
      EXPECT_EQ(testing::predicted_memory(rank.buckets->layout(), rank.reducer->config(), rank.options,
                                          ContributionPath::kExchanged, coded),
                measured);
      EXPECT_EQ(rank.optimizer.gather_bytes() > 0, gather == WeightGather::kF8 && communicator.size() > 1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OneToFour, CodedGatherOnRanks, ::testing::Values(1, 2, 3, 4));

// Counts the bytes that a rank gathers.
class CountedGathers final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    bytes += send.size_bytes();
    return ForwardingCommunicator::all_gather(send, recv, stream);
  }
  size_t bytes = 0;
};

size_t bytes_of_a_step(Communicator& local, const CodedRun& run, GatherPlan* plan) {
  CountedGathers communicator(local);
  CodedRank rank(communicator, run, int64_t{1} << 14);
  *plan = plan_gather(rank.buckets->layout(), run.gather == WeightGather::kF8 ? rank.coded : CodedWeights());
  rank.optimizer.initialize(5);
  rank.calibrate();
  rank.pass();
  communicator.bytes = 0;
  rank.finish_step(gradient_of(0));
  return communicator.bytes - static_cast<size_t>(rank.scales.records().numel());
}

TEST(CodedGather, SendsHalfOfTheBytesOfWhatIsCoded) {
  run_ranks(2, [](Communicator& local) {
    GatherPlan stored, coded;
    const size_t as_stored = bytes_of_a_step(local, {.gather = WeightGather::kWorking}, &stored);
    const size_t in_codes = bytes_of_a_step(local, {}, &coded);
    EXPECT_EQ(as_stored, stored.stored_bytes);
    EXPECT_EQ(stored.sent_bytes, stored.stored_bytes);
    EXPECT_EQ(coded.stored_bytes, stored.stored_bytes);
    EXPECT_EQ(in_codes, coded.sent_bytes);
    // up.weight (65, 64) and down.weight (64, 67) have their own buckets of 4224 and 4352 elements with padding. A rank
    // sends half of each, and saves one byte an element.
    EXPECT_EQ(as_stored - in_codes, size_t{2112 + 2176});
  });
}

// Weights are gathered uncoded until scales are known: the calibration pass reads unrounded weights.
TEST(CodedGather, WaitsForTheCalibration) {
  std::vector<uint64_t> hashes(2);
  for (const WeightGather gather : {WeightGather::kWorking, WeightGather::kF8}) {
    run_ranks(2, [&](Communicator& communicator) {
      CodedRank rank(communicator, {.gather = gather});
      rank.optimizer.initialize(5);
      rank.pass();
      rank.finish_step(gradient_of(0));
      if (communicator.rank() == 1) hashes[static_cast<size_t>(gather)] = rank.hash();
    });
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

// Restoring the weights for a checkpoint changes neither them nor later steps, compared with training without codes.
TEST(CodedGather, WeightsCanBeHadAsTheyWereBefore) {
  for (const MasterWeights master : {MasterWeights::kF32, MasterWeights::kNoneStochastic}) {
    std::vector<uint64_t> hashes[2];
    for (const WeightGather gather : {WeightGather::kWorking, WeightGather::kF8}) {
      run_ranks(3, [&](Communicator& communicator) {
        CodedRun run{.gather = gather};
        run.adamw.master = master;
        CodedRank rank(communicator, run);
        rank.optimizer.initialize(5);
        rank.calibrate();
        for (int step = 0; step < 3; ++step) {
          rank.pass();
          rank.finish_step(gradient_of(step));
          rank.optimizer.restore_weights();
          if (communicator.rank() == 1) hashes[static_cast<size_t>(gather)].push_back(rank.hash());
        }
      });
    }
    EXPECT_EQ(hashes[0], hashes[1]);
    ASSERT_EQ(hashes[0].size(), 3u);
    EXPECT_NE(hashes[0][0], hashes[0][2]);
  }
}

TEST(CodedGather, ItsBuffersAreRegistered) {
  run_ranks(2, [](Communicator& local) {
    const auto registered_with = [&](WeightGather gather) {
      testing::RecordedRegistrations communicator(local);
      const CodedRank rank(communicator, {.gather = gather});
      return communicator.registered();
    };
    EXPECT_EQ(registered_with(WeightGather::kF8), registered_with(WeightGather::kWorking) + GatherPlan::kSlots);
  });
}

// ---- Positions of weights that are sent as codes: pure arithmetic.

struct PlanCase {
  ParameterSet parameters;
  CodedWeights coded;

  void add(const std::string& name, int64_t numel, bool is_coded, DType dtype = DType::kBF16) {
    parameters.add(name, {numel, 1}, {}).working_dtype = dtype;
    coded.push_back(is_coded ? std::optional(Format::kE4M3) : std::nullopt);
  }
};

TEST(GatherPlan, AByteForWhatIsCodedAndTheRestAsItIs) {
  PlanCase of;
  of.add("plain", 64, false);
  of.add("coded", 100, true);  // takes 128 positions
  const BucketLayout layout(of.parameters, 3);
  ASSERT_EQ(layout.buckets().size(), 1u);
  ASSERT_EQ(layout.buckets()[0].shard_numel, 64);
  const GatherPlan plan = plan_gather(layout, of.coded);
  // From the last parameter on, rank 0 has 64 codes, rank 1 36, rank 2 64 elements of two bytes. No row gets shorter.
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.sent_bytes, plan.stored_bytes);
  EXPECT_EQ(plan.stored_bytes, size_t{128});
}

TEST(GatherPlan, RowsAreAsLongAsTheLongestOfARank) {
  PlanCase of;
  of.add("plain", 64, false);
  of.add("coded", 320, true);
  const BucketLayout layout(of.parameters, 2);
  ASSERT_EQ(layout.buckets()[0].shard_numel, 192);
  const GatherPlan plan = plan_gather(layout, of.coded);
  const GatherPlan::Bucket& bucket = plan.buckets[0];
  // Rank 0: 192 codes. Rank 1: 128 codes and 64 elements of two bytes.
  EXPECT_EQ(bucket.row_bytes, 256);
  ASSERT_EQ(bucket.ranks[0].size(), 1u);
  ASSERT_EQ(bucket.ranks[1].size(), 2u);
  EXPECT_EQ(bucket.ranks[0][0].parameter, 1);
  EXPECT_EQ(bucket.ranks[0][0].offset, 0);
  EXPECT_EQ(bucket.ranks[0][0].count, 192);
  EXPECT_EQ(bucket.ranks[1][0].offset, 192);
  EXPECT_EQ(bucket.ranks[1][0].count, 128);
  EXPECT_EQ(bucket.ranks[1][0].format, Format::kE4M3);
  EXPECT_EQ(bucket.ranks[1][1].offset, 320);
  EXPECT_EQ(bucket.ranks[1][1].row_offset, 128);
  EXPECT_EQ(bucket.ranks[1][1].format, std::nullopt);
  EXPECT_EQ(plan.slot_bytes, size_t{512});
  EXPECT_EQ(plan.shard_bytes, size_t{384});
  EXPECT_EQ(plan.sent_bytes, size_t{256});
  EXPECT_EQ(plan.stored_bytes, size_t{384});
}

// Every element of every bucket is in exactly one piece; pieces of a row do not overlap.
TEST(GatherPlan, EveryElementTravelsOnce) {
  for (const int ranks : {1, 2, 3, 4}) {
    PlanCase of;
    const int64_t sizes[] = {1, 63, 64, 65, 1000, 4097, 640, 129, 2000, 77};
    for (size_t i = 0; i < std::size(sizes); ++i) {
      of.add("p" + std::to_string(i), sizes[i], i % 3 != 1, i == 4 ? DType::kF32 : DType::kBF16);
      if (i == 4) of.coded.back().reset();
    }
    const BucketLayout layout(of.parameters, ranks, 3000 * 4);
    const GatherPlan plan = plan_gather(layout, of.coded);
    std::vector<int64_t> travelled(std::size(sizes));
    for (size_t index = 0; index < plan.buckets.size(); ++index) {
      const GatherPlan::Bucket& bucket = plan.buckets[index];
      if (!bucket.coded()) {
        for (const Segment& segment : layout.buckets()[index].segments) {
          travelled[static_cast<size_t>(segment.parameter)] += segment.count;
        }
        continue;
      }
      ASSERT_EQ(bucket.ranks.size(), static_cast<size_t>(ranks));
      for (const auto& row : bucket.ranks) {
        int64_t end = 0;
        for (const GatherPlan::Piece& piece : row) {
          EXPECT_GE(piece.row_offset, end);
          EXPECT_EQ(piece.row_offset % 64, 0);
          EXPECT_EQ(piece.format, of.coded[static_cast<size_t>(piece.parameter)]);
          end = piece.row_offset + piece.count * (piece.format ? 1 : 2);
          travelled[static_cast<size_t>(piece.parameter)] += piece.count;
        }
        EXPECT_LE(end, bucket.row_bytes);
      }
      EXPECT_LT(bucket.row_bytes, 2 * layout.buckets()[index].shard_numel);
    }
    EXPECT_EQ(travelled, std::vector<int64_t>(std::begin(sizes), std::end(sizes)));
    EXPECT_FALSE(plan.empty());
  }
}

TEST(GatherPlan, NothingWhereNoWeightIsCoded) {
  PlanCase of;
  of.add("plain", 640, false);
  const GatherPlan plan = plan_gather(BucketLayout(of.parameters, 2), {});
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.shard_bytes, size_t{0});
  EXPECT_EQ(plan.sent_bytes, size_t{640});
}

}  // namespace
}  // namespace mantissa
