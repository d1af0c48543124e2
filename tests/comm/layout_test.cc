// Layouts of buckets: pure arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "comm/flat_buckets.h"

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

}  // namespace
}  // namespace mantissa
