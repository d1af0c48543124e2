// Scales of what is sent, and places in wire buffers: pure arithmetic.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/gradient_reducer.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

WireScale scale_of(DType wire, Accumulation accumulation, int ranks, int prescale_log2 = 0) {
  return wire_scale({.wire = wire, .accumulation = accumulation, .prescale_log2 = prescale_log2}, ranks);
}

TEST(WireScale, Fp32AccumulationBringsTheMagnitudeOfALocalMean) {
  const int ranks[] = {1, 2, 3, 4, 5, 7, 8, 1000};
  const float before[] = {1, 2, 2, 4, 4, 4, 8, 512};
  for (size_t i = 0; i < std::size(ranks); ++i) {
    for (const DType wire : {DType::kBF16, DType::kF16}) {
      const WireScale scale = scale_of(wire, Accumulation::kFp32, ranks[i]);
      EXPECT_EQ(scale.before, before[i]) << ranks[i];
      EXPECT_EQ(scale.after, 1.0f / before[i]) << ranks[i];
    }
  }
}

TEST(WireScale, WireAccumulationLeavesRoomForTheSquareRoot) {
  // 2^floor(log2 N) over the smallest power of two >= sqrt(N): 2/2, 2/2, 4/2, 4/4, 8/4, 16/4, 16/8, 64/8.
  const int ranks[] = {2, 3, 4, 5, 8, 16, 17, 64};
  const float before[] = {1, 1, 2, 1, 2, 4, 2, 8};
  for (size_t i = 0; i < std::size(ranks); ++i) {
    const WireScale scale = scale_of(DType::kF16, Accumulation::kWire, ranks[i]);
    EXPECT_EQ(scale.before, before[i]) << ranks[i];
    EXPECT_EQ(scale.after, 1.0f / before[i]) << ranks[i];
  }
}

TEST(WireScale, AGradientPrescaleIsTakenOffOnTheWire) {
  const WireScale scale = scale_of(DType::kF16, Accumulation::kFp32, 4, 5);
  EXPECT_EQ(scale.before, 0.125f);  // 4 / 32
  EXPECT_EQ(scale.after, 8.0f);
}

TEST(WireScale, Fp32WireAndSingleRanksAreNotScaled) {
  for (const auto accumulation : {Accumulation::kFp32, Accumulation::kWire}) {
    for (const WireScale& scale :
         {scale_of(DType::kF32, accumulation, 8, 3), scale_of(DType::kF16, accumulation, 1, 3)}) {
      EXPECT_EQ(scale.before, 1.0f);
      EXPECT_EQ(scale.after, 1.0f);
    }
  }
  EXPECT_THROW(scale_of(DType::kI32, Accumulation::kFp32, 2), ContractError);
}

TEST(WirePlan, OneRankNeedsNoBuffers) {
  ParameterSet parameters;
  testing::add_toy_parameters(parameters);
  const WirePlan plan = plan_wire(BucketLayout(parameters, 1), {});
  EXPECT_EQ(plan.window_bytes, 0u);
  EXPECT_EQ(plan.result_bytes, 0u);
}

TEST(WirePlan, ResultsAreShardsOrAll) {
  ParameterSet parameters;
  testing::add_toy_parameters(parameters);
  const BucketLayout layout(parameters, 4);
  EXPECT_EQ(plan_wire(layout, {.sharding = Sharding::kSharded}).result_bytes, static_cast<size_t>(layout.numel()));
  EXPECT_EQ(plan_wire(layout, {.sharding = Sharding::kReplicated}).result_bytes,
            4 * static_cast<size_t>(layout.numel()));
}

TEST(WirePlan, ContributionsReadInPlaceNeedNoWindow) {
  ParameterSet parameters;
  testing::add_toy_parameters(parameters);
  const BucketLayout layout(parameters, 3, testing::kToyCapacityBytes);
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      const ReducerConfig config{.wire = wire, .sharding = sharding};
      const WirePlan plan = plan_wire(layout, config, ContributionPath::kInPlace);
      EXPECT_EQ(plan.window_bytes, 0u);
      EXPECT_EQ(plan.result_bytes, plan_wire(layout, config).result_bytes);
      for (size_t bucket = 0; bucket < plan.slots.size(); ++bucket) {
        EXPECT_EQ(plan.slots[bucket].receive_bytes, 0u);
        EXPECT_EQ(plan.slots[bucket].send_bytes, 0u);
        EXPECT_EQ(plan.slots[bucket].blocker, -1);
      }
    }
  }
}

// Buckets that share bytes of the window must never run at once, and none may wait longer than necessary.
TEST(WirePlan, BlockersProtectEveryPlace) {
  int blocked = 0;
  for (const int ranks : {2, 3, 5}) {
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      ParameterSet parameters;
      for (int i = 0; i < 40; ++i) parameters.add("p" + std::to_string(i), {1 + (i * 7919) % 1500}, {});
      const BucketLayout layout(parameters, ranks, 1600 * sizeof(float));
      const WirePlan plan = plan_wire(layout, {.wire = wire});
      const auto end = [&](size_t i) {
        return plan.slots[i].offset_bytes + plan.slots[i].send_bytes + plan.slots[i].receive_bytes;
      };
      for (size_t i = 0; i < plan.slots.size(); ++i) {
        const WirePlan::Slot& slot = plan.slots[i];
        EXPECT_LE(end(i), plan.window_bytes);
        EXPECT_EQ(slot.offset_bytes % 64, 0u);
        EXPECT_EQ(slot.send_bytes, wire == DType::kF32 ? 0 : slot.receive_bytes);
        EXPECT_EQ(slot.receive_bytes, static_cast<size_t>(layout.buckets()[i].numel * size_bytes(wire)));
        for (size_t j = 0; j < i; ++j) {
          const bool overlap = plan.slots[j].offset_bytes < end(i) && slot.offset_bytes < end(j);
          if (static_cast<int>(j) > slot.blocker) {
            EXPECT_FALSE(overlap) << i << " " << j;
          }
          if (static_cast<int>(j) == slot.blocker) {
            EXPECT_TRUE(overlap) << i << " " << j;
          }
        }
        blocked += slot.blocker >= 0;
        // Ordinary buckets: at least two others run while one starts. Four fit except for padding and the ring's end.
        if (slot.blocker >= 0) {
          EXPECT_LE(slot.blocker, static_cast<int>(i) - 3);
        }
      }
    }
  }
  EXPECT_GT(blocked, 0);
}

TEST(WirePlan, TheWindowHoldsTheLargestBucketAndIsNoLargerThanAllOfThem) {
  ParameterSet large, small;
  large.add("small", {64}, {});
  large.add("large", {100'000}, {});
  const BucketLayout layout(large, 2, 4096);
  EXPECT_EQ(plan_wire(layout, {.wire = DType::kBF16}).window_bytes, 2u * 2u * 100'096u);  // 782 * 128, send and receive
  // Codes: a row for each rank, of 50'048 codes and 1564 scales, which are padded to 1600.
  EXPECT_EQ(plan_wire(layout, {.wire = DType::kE4M3}).window_bytes, 2u * 2u * (50'048u + 1600u));
  small.add("small", {64}, {});
  EXPECT_EQ(plan_wire(BucketLayout(small, 2), {.wire = DType::kBF16}).window_bytes, 2u * 2u * 128u);
}

}  // namespace
}  // namespace mantissa
