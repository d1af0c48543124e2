// Layouts of buckets, wire buffers and rows of gathered weights: pure arithmetic.
#include <gtest/gtest.h>
#include <algorithm>
#include <map>

#include "comm/coded_gather.h"
#include "comm/flat_buckets.h"
#include "comm/reduction_buffers.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

// Adds parameters with these element counts, in bf16 unless `fp32` is set.
void add(ParameterSet& parameters, const std::vector<int64_t>& sizes, const std::vector<int>& fp32 = {}) {
  for (size_t index = 0; index < sizes.size(); ++index) {
    const bool wide = std::find(fp32.begin(), fp32.end(), static_cast<int>(index)) != fp32.end();
    parameters.add("p" + std::to_string(index), {sizes[index]}, {}).working_dtype = wide ? DType::kF32 : DType::kBF16;
  }
}

std::vector<int> parameters_of(const BucketLayout::Bucket& bucket) {
  std::vector<int> indices;
  for (const Segment& segment : bucket.segments) indices.push_back(segment.parameter);
  return indices;
}

TEST(BucketLayout, ByHand) {
  ParameterSet parameters;
  add(parameters, {200, 64, 1, 65, 300});
  const BucketLayout layout(parameters, 3, 320 * sizeof(float));
  // Reverse order of use; aligned sizes 320 | 128 64 64 | 256. p0 does not fit after p1.
  ASSERT_EQ(layout.buckets().size(), 3u);
  EXPECT_EQ(parameters_of(layout.buckets()[0]), (std::vector<int>{4}));
  EXPECT_EQ(parameters_of(layout.buckets()[1]), (std::vector<int>{3, 2, 1}));
  EXPECT_EQ(parameters_of(layout.buckets()[2]), (std::vector<int>{0}));
  // Lengths are multiples of 3 * 64.
  EXPECT_EQ(layout.buckets()[0].numel, 384);
  EXPECT_EQ(layout.buckets()[1].numel, 384);
  EXPECT_EQ(layout.buckets()[1].flat_begin, 384);
  EXPECT_EQ(layout.buckets()[1].shard_numel, 128);
  EXPECT_EQ(layout.numel(), 3 * 384);
  EXPECT_EQ(layout.bucket_of(2), 1);
  EXPECT_EQ(layout.flat_index(3, 64), 384 + 64);
  EXPECT_EQ(layout.locate(384 + 64), (BucketLayout::Element{3, 64}));
  EXPECT_FALSE(layout.locate(384 + 65).has_value());     // padding after p3
  EXPECT_FALSE(layout.locate(3 * 384 - 1).has_value());  // padding at the end
  // The second of three shards: of bucket 1 it is [128, 256), p2 and p1; of bucket 2 the middle of p0.
  EXPECT_EQ(layout.shard_segments(1, 1), (std::vector<Segment>{{2, 0, 1, 0}, {1, 0, 64, 64}}));
  EXPECT_EQ(layout.shard_segments(2, 1), (std::vector<Segment>{{0, 128, 72, 0}}));
  EXPECT_TRUE(layout.shard_segments(2, 2).empty());  // padding only
}

TEST(BucketLayout, KeepsTheBlocksOfAParameterOnOneRank) {
  constexpr int64_t kBlock = 256;
  for (const int ranks : {1, 2, 3, 5}) {
    ParameterSet parameters;
    add(parameters, {2000, 64, 257, 100, 5000}, {3});
    const BucketLayout layout(parameters, ranks, 1 << 20, [](const Parameter& parameter) {
      return parameter.numel() > 256 ? kBlock : BucketLayout::kAlignmentElements;
    });
    ASSERT_EQ(layout.buckets().size(), 3u) << "of one dtype and alignment each";
    for (int bucket = 0; bucket < 3; ++bucket) {
      const int64_t alignment = layout.buckets()[static_cast<size_t>(bucket)].alignment;
      int64_t found = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        for (const Segment& segment : layout.shard_segments(bucket, rank)) {
          EXPECT_EQ(alignment == kBlock, parameters[segment.parameter].numel() > 256);
          EXPECT_EQ(segment.begin % alignment, 0);
          EXPECT_EQ(segment.offset % alignment, 0);
          found += segment.count;
        }
      }
      int64_t expected = 0;
      for (const Segment& segment : layout.buckets()[static_cast<size_t>(bucket)].segments) expected += segment.count;
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(BucketLayout, AParameterAboveTheCapacityHasItsOwnBucket) {
  ParameterSet parameters;
  add(parameters, {64, 1000, 64});
  const BucketLayout layout(parameters, 1, 256 * sizeof(float));
  ASSERT_EQ(layout.buckets().size(), 3u);
  EXPECT_EQ(parameters_of(layout.buckets()[1]), (std::vector<int>{1}));
}

TEST(BucketLayout, BucketsAreInTheOrderInWhichTheyFillUp) {
  // Small fp32 vectors between large bf16 matrices share one bucket. It spans the model, so it is complete last.
  ParameterSet parameters;
  add(parameters, {640, 8, 640, 8, 640, 8, 640, 8}, {1, 3, 5, 7});
  const BucketLayout layout(parameters, 2, 640 * sizeof(float));
  ASSERT_EQ(layout.buckets().size(), 5u);
  EXPECT_EQ(parameters_of(layout.buckets()[0]), (std::vector<int>{6}));
  EXPECT_EQ(parameters_of(layout.buckets()[1]), (std::vector<int>{4}));
  EXPECT_EQ(parameters_of(layout.buckets()[2]), (std::vector<int>{2}));
  EXPECT_EQ(parameters_of(layout.buckets()[3]), (std::vector<int>{7, 5, 3, 1}));
  EXPECT_EQ(parameters_of(layout.buckets()[4]), (std::vector<int>{0}));
  EXPECT_EQ(layout.buckets()[3].dtype, DType::kF32);
  EXPECT_EQ(layout.buckets()[4].dtype, DType::kBF16);
}

class BucketLayoutInvariants : public ::testing::TestWithParam<std::tuple<int, int64_t>> {};

TEST_P(BucketLayoutInvariants, Hold) {
  const auto [ranks, capacity_elements] = GetParam();
  ParameterSet parameters;
  add(parameters, {1, 63, 64, 65, 127, 500, 4096, 31, 129, 1, 1000}, {0, 1, 4, 8});
  const BucketLayout layout(parameters, ranks, capacity_elements * static_cast<int64_t>(sizeof(float)));

  int64_t flat = 0;
  std::map<int, int64_t> seen;       // parameter, next element, walking all flat indices
  std::map<int, int64_t> in_shards;  // parameter, elements in shards
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const BucketLayout::Bucket& bucket = layout.buckets()[index];
    EXPECT_EQ(bucket.flat_begin, flat);
    EXPECT_EQ(bucket.shard_numel * ranks, bucket.numel);
    EXPECT_EQ(bucket.shard_numel % 64, 0);
    int64_t filled = 0;
    for (const Segment& segment : bucket.segments) {
      EXPECT_EQ(segment.offset % 64, 0);
      EXPECT_EQ(parameters[segment.parameter].working_dtype, bucket.dtype);
      EXPECT_GE(segment.offset, filled);
      filled = segment.offset + segment.count;
      EXPECT_EQ(layout.flat_index(segment.parameter, 0), bucket.flat_begin + segment.offset);
    }
    EXPECT_TRUE(bucket.segments.size() == 1 || (filled + 63) / 64 * 64 <= capacity_elements) << "bucket " << index;
    EXPECT_LT(bucket.numel, (filled + 63) / 64 * 64 + 64 * ranks) << "more padding than a shard unit, bucket " << index;
    EXPECT_TRUE(std::is_sorted(bucket.segments.rbegin(), bucket.segments.rend(),
                               [](const Segment& a, const Segment& b) { return a.parameter < b.parameter; }));
    for (int rank = 0; rank < ranks; ++rank) {
      for (const Segment& segment : layout.shard_segments(static_cast<int>(index), rank)) {
        EXPECT_LE(segment.offset + segment.count, bucket.shard_numel);
        EXPECT_EQ(layout.flat_index(segment.parameter, segment.begin),
                  bucket.flat_begin + rank * bucket.shard_numel + segment.offset);
        EXPECT_EQ(segment.begin, in_shards[segment.parameter]) << "shards must follow each other without gaps";
        in_shards[segment.parameter] += segment.count;
      }
    }
    flat += bucket.numel;
  }
  EXPECT_EQ(layout.numel(), flat);

  int64_t padding = 0;
  for (int64_t index = 0; index < layout.numel(); ++index) {
    const auto element = layout.locate(index);
    padding += !element.has_value();
    if (!element) continue;
    EXPECT_EQ(element->element, seen[element->parameter]++);
    EXPECT_EQ(layout.flat_index(element->parameter, element->element), index);
  }
  EXPECT_EQ(padding, layout.numel() - parameters.numel());
  for (int index = 0; index < parameters.size(); ++index) {
    EXPECT_EQ(seen[index], parameters[index].numel());
    EXPECT_EQ(in_shards[index], parameters[index].numel());
  }
}

INSTANTIATE_TEST_SUITE_P(RanksAndCapacities, BucketLayoutInvariants,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 7),
                                            ::testing::Values(int64_t{1}, int64_t{256}, int64_t{1024},
                                                              int64_t{1} << 30)));

TEST(BucketLayout, RefusesWhatCannotBeLaidOut) {
  ParameterSet none, empty, some;
  add(empty, {4, 0});
  add(some, {4});
  EXPECT_THROW(BucketLayout(none, 1), ContractError);
  EXPECT_THROW(BucketLayout(empty, 1), ContractError);
  EXPECT_THROW(BucketLayout(some, 0), ContractError);
  EXPECT_THROW(BucketLayout(some, 1, 0), ContractError);
  EXPECT_THROW(BucketLayout(some, 1, 100, [](const Parameter&) { return 100; }), ContractError);
  EXPECT_THROW(BucketLayout(some, 1, 100, [](const Parameter&) { return 0; }), ContractError);
  const BucketLayout layout(some, 1);
  EXPECT_THROW(layout.locate(-1), ContractError);
  EXPECT_THROW(layout.locate(64), ContractError);
  EXPECT_THROW(layout.shard_segments(0, 1), ContractError);
}

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
      EXPECT_EQ(scale.gather, 1.0f);
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
  EXPECT_EQ(scale.gather, 0x1p-5f);
}

TEST(WireScale, Fp32WireAndSingleRanksAreNotScaled) {
  for (const auto accumulation : {Accumulation::kFp32, Accumulation::kWire}) {
    for (const WireScale& scale :
         {scale_of(DType::kF32, accumulation, 8, 3), scale_of(DType::kF16, accumulation, 1, 3)}) {
      EXPECT_EQ(scale.before, 1.0f);
      EXPECT_EQ(scale.after, 1.0f);
      EXPECT_EQ(scale.gather, 1.0f);
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

// Only sums that are gathered in 16 bits need buffers.
TEST(WirePlan, ContributionsReadInPlaceNeedNoWindow) {
  ParameterSet parameters;
  testing::add_toy_parameters(parameters);
  const BucketLayout layout(parameters, 3, testing::kToyCapacityBytes);
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      const ReducerConfig config{.wire = wire, .sharding = sharding};
      const WirePlan plan = plan_wire(layout, config, ContributionPath::kInPlace);
      const bool gathers = wire == DType::kBF16 && sharding == Sharding::kReplicated;
      EXPECT_EQ(plan.window_bytes > 0, gathers);
      EXPECT_EQ(plan.result_bytes, plan_wire(layout, config).result_bytes);
      for (size_t bucket = 0; bucket < plan.slots.size(); ++bucket) {
        EXPECT_EQ(plan.slots[bucket].receive_bytes, 0u);
        EXPECT_EQ(plan.slots[bucket].send_bytes, gathers ? 2 * static_cast<size_t>(layout.buckets()[bucket].numel) : 0);
        if (!gathers) {
          EXPECT_EQ(plan.slots[bucket].blocker, -1);
        }
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
  small.add("small", {64}, {});
  EXPECT_EQ(plan_wire(BucketLayout(small, 2), {.wire = DType::kBF16}).window_bytes, 2u * 2u * 128u);
}

// Positions of weights that are sent as codes.

struct Case {
  ParameterSet parameters;
  CodedWeights coded;

  void add(const std::string& name, int64_t numel, bool is_coded, DType dtype = DType::kBF16) {
    parameters.add(name, {numel, 1}, {}).working_dtype = dtype;
    coded.push_back(is_coded ? std::optional(Format::kE4M3) : std::nullopt);
  }
};

TEST(GatherPlan, AByteForWhatIsCodedAndTheRestAsItIs) {
  Case of;
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
  Case of;
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
    Case of;
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
  Case of;
  of.add("plain", 640, false);
  const GatherPlan plan = plan_gather(BucketLayout(of.parameters, 2), {});
  EXPECT_TRUE(plan.empty());
  EXPECT_EQ(plan.shard_bytes, size_t{0});
  EXPECT_EQ(plan.sent_bytes, size_t{640});
}

}  // namespace
}  // namespace mantissa
