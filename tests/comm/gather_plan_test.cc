// Positions of weights that are sent as codes: pure arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "comm/coded_gather.h"
#include "comm/flat_buckets.h"

namespace mantissa {
namespace {

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
