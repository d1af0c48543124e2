#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "core/base/check.h"
#include "core/data/batch.h"
#include "tests/core/data/shard_file.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

constexpr int64_t kContext = 16;

class Batch : public ::testing::Test {
 protected:
  Batch() : sampler_(1000, kContext, 3, SampleOrder::kShuffled, "x") {
    std::string bytes(1100, '\0');
    std::iota(bytes.begin(), bytes.end(), '\0');  // token i is i % 256
    range_ = {std::make_shared<const TokenData>(
                  TokenDataOptions{.files = {folder_.write("a", bytes)}, .layout = TokenLayout::kBytes, .vocab = 256}),
              100, 1100};
  }
  testing::TempFolder folder_;
  TokenRange range_;
  Sampler sampler_;
};

TEST_F(Batch, TargetsAreTheFollowingTokensOfTheRange) {
  std::vector<int32_t> tokens(3 * kContext), targets(3 * kContext);
  fill_next_token_batch(range_, sampler_, 5, kContext, tokens, targets);
  for (size_t row = 0; row < 3; ++row) {
    const int64_t begin = 100 + sampler_.window_begin(5 + row);
    for (size_t t = 0; t < kContext; ++t) {
      ASSERT_EQ(tokens[row * kContext + t], (begin + static_cast<int64_t>(t)) % 256);
      ASSERT_EQ(targets[row * kContext + t], (begin + static_cast<int64_t>(t) + 1) % 256);
    }
  }
  std::vector<int32_t> ragged(kContext + 1);
  EXPECT_THROW(fill_next_token_batch(range_, sampler_, 0, kContext, ragged, ragged), ContractError);
}

TEST_F(Batch, MaskingDependsOnTheSampleOnly) {
  const MaskingOptions options{.fraction = 0.3, .mask_token = 999, .vocab = 256, .seed = 4};
  std::vector<int32_t> tokens(4 * kContext), targets(4 * kContext), one(kContext), one_target(kContext);
  fill_masked_batch(range_, sampler_, 8, kContext, options, tokens, targets);
  for (size_t row = 0; row < 4; ++row) {
    fill_masked_batch(range_, sampler_, 8 + row, kContext, options, one, one_target);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), tokens.begin() + static_cast<ptrdiff_t>(row * kContext)));
    EXPECT_TRUE(
        std::equal(one_target.begin(), one_target.end(), targets.begin() + static_cast<ptrdiff_t>(row * kContext)));
  }
}

TEST_F(Batch, MaskingHidesTheStatedShares) {
  const MaskingOptions options{.fraction = 0.15, .mask_token = 999, .vocab = 256, .seed = 4};
  constexpr size_t kSamples = 2000;
  std::vector<int32_t> tokens(kSamples * kContext), targets(kSamples * kContext), plain(kSamples * kContext),
      next(plain);
  fill_masked_batch(range_, sampler_, 0, kContext, options, tokens, targets);
  fill_next_token_batch(range_, sampler_, 0, kContext, plain, next);
  double predicted = 0, hidden = 0, kept = 0;
  for (size_t row = 0; row < kSamples; ++row) {
    int in_row = 0;
    for (size_t i = row * kContext; i < (row + 1) * kContext; ++i) {
      if (targets[i] == kIgnoredTarget) {
        ASSERT_EQ(tokens[i], plain[i]);
        continue;
      }
      ASSERT_EQ(targets[i], plain[i]);
      ++in_row;
      hidden += tokens[i] == 999;
      kept += tokens[i] == plain[i];
    }
    ASSERT_GE(in_row, 1);
    predicted += in_row;
  }
  // One position in 16 is always chosen, the others with probability 0.15. Bounds are 5 standard deviations of n draws.
  EXPECT_NEAR(predicted / (kSamples * kContext), (1 + 15 * 0.15) / 16, 5 * 0.36 / std::sqrt(32000.0));
  EXPECT_NEAR(hidden / predicted, 0.8, 5 * 0.4 / std::sqrt(predicted));
  EXPECT_NEAR(kept / predicted, 0.1 + 0.1 / 256, 5 * 0.3 / std::sqrt(predicted));
}

TEST(PackedBatch, LaysDocumentsSideBySide) {
  const testing::TempFolder folder;
  TokenShardWriter writer(256, "toy");
  writer.add(std::vector<int32_t>{1, 2, 3, 4});
  writer.add(std::vector<int32_t>{9});
  writer.add(std::vector<int32_t>{5, 6, 7}, std::vector<uint8_t>{0, 0, 1});
  writer.add(std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
  const TokenRange range = TokenRange::whole(std::make_shared<const TokenData>(
      TokenDataOptions{.files = {folder.write("a.safetensors", testing::shard_text(writer))},
                       .layout = TokenLayout::kAuto,
                       .documents = Documents::kSeparate}));
  const PackedDocuments packed(range.documents(), range.end, 7, 1, SampleOrder::kSequential);
  const EpochOrder order(packed.sequences(), 1, SampleOrder::kSequential);
  ASSERT_EQ(packed.sequences(), 2);
  std::vector<int32_t> tokens(14), targets(14), starts(14);
  fill_packed_batch(range, packed, order, 2, 7, {tokens, targets, starts});  // the second epoch
  constexpr int32_t kNone = kIgnoredTarget;
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 2, 3, 5, 6, 17, 18, 10, 11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(targets, (std::vector<int32_t>{2, 3, 4, kNone, 7, 18, 19, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(starts, (std::vector<int32_t>{0, 0, 0, 3, 3, 5, 5, 0, 0, 0, 0, 0, 0, 0}));
  const PackedDocuments wide(range.documents(), range.end, 9, 1, SampleOrder::kSequential);
  tokens.assign(9, 1), targets.assign(9, 1), starts.assign(9, 1);
  fill_packed_batch(range, wide, EpochOrder(2, 1, SampleOrder::kSequential), 0, 9, {tokens, targets, starts});
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 2, 3, 5, 6, 0, 0, 0, 0}));
  EXPECT_EQ(targets, (std::vector<int32_t>{2, 3, 4, kNone, 7, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(starts, (std::vector<int32_t>{0, 0, 0, 3, 3, 5, 5, 5, 5}));
  // The same mask for windows that know no documents.
  tokens.assign(4, 1), targets.assign(4, 1);
  fill_next_token_batch({range.data, 3, 8}, Sampler(5, 4, 1, SampleOrder::kSequential, "x"), 0, 4, tokens, targets);
  EXPECT_EQ(targets, (std::vector<int32_t>{9, kNone, kNone, 7}));
}

// --- sampler

TEST(Permute, IsABijectionForEverySize) {
  for (uint64_t size = 1; size <= 300; ++size) {
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t to = permute(i, size, 42, 7);
      ASSERT_LT(to, size);
      ASSERT_FALSE(seen[to]) << "size " << size << ": " << to << " is reached twice";
      seen[to] = true;
    }
  }
}

TEST(Permute, DependsOnKeyAndEpochAndHandlesLargeSizes) {
  int same_key = 0, same_epoch = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    same_key += permute(i, 1000, 1, 0) == permute(i, 1000, 2, 0);
    same_epoch += permute(i, 1000, 1, 0) == permute(i, 1000, 1, uint64_t{1} << 32);
  }
  // Two random permutations agree at one position on average. P(more than 10) is below 1e-7 (Poisson).
  EXPECT_LE(same_key, 10);
  EXPECT_LE(same_epoch, 10);
  const uint64_t huge = (uint64_t{1} << 61) + 3;
  std::set<uint64_t> images;
  for (uint64_t i = 0; i < 100; ++i) images.insert(permute(i, huge, 1, 0));
  EXPECT_EQ(images.size(), 100u);
  EXPECT_LT(*images.rbegin(), huge);
  EXPECT_THROW(permute(10, 10, 1, 0), ContractError);
}

TEST(Permute, SpreadsNeighbours) {
  // Two random points in [0, n) are n / 3 apart on average. Over 4095 steps the standard error is about 0.004 n.
  constexpr uint64_t kSize = 4096;
  double distance = 0.0;
  for (uint64_t i = 0; i + 1 < kSize; ++i) {
    const auto a = static_cast<double>(permute(i, kSize, 5, 0)), b = static_cast<double>(permute(i + 1, kSize, 5, 0));
    distance += std::abs(a - b) / kSize;
  }
  EXPECT_NEAR(distance / (kSize - 1), 1.0 / 3.0, 0.02);
}

TEST(Sampler, EveryEpochVisitsEveryWindowOnce) {
  const Sampler sampler(1003, 10, 1, SampleOrder::kShuffled, "training data");
  ASSERT_EQ(sampler.windows(), 100);
  std::vector<std::vector<int64_t>> epochs;
  for (uint64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> order;
    std::set<int64_t> windows;
    for (uint64_t i = 0; i < 100; ++i) {
      const int64_t begin = sampler.window_begin(epoch * 100 + i);
      ASSERT_GE(begin, 0);
      ASSERT_LE(begin + 10 + 1, 1003);
      order.push_back(begin / 10);
      windows.insert(begin / 10);
      ASSERT_EQ(begin % 10, sampler.window_begin(epoch * 100) % 10) << "one shift for a whole epoch";
    }
    EXPECT_EQ(windows.size(), 100u);
    for (const auto& earlier : epochs) EXPECT_NE(order, earlier);
    epochs.push_back(order);
  }
}

TEST(Sampler, AnyNumberOfRanksReadsTheSameSamples) {
  const Sampler one(100000, 16, 9, SampleOrder::kShuffled, "training data");
  constexpr int kGlobalBatch = 12;
  for (const int ranks : {1, 2, 3}) {
    const Sampler mine(100000, 16, 9, SampleOrder::kShuffled, "training data");  // each rank has its own sampler
    std::set<int64_t> seen, expected;
    for (int step = 0; step < 5; ++step) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (int i = rank * kGlobalBatch / ranks; i < (rank + 1) * kGlobalBatch / ranks; ++i) {
          seen.insert(mine.window_begin(static_cast<uint64_t>(step * kGlobalBatch + i)));
        }
      }
      for (int i = 0; i < kGlobalBatch; ++i)
        expected.insert(one.window_begin(static_cast<uint64_t>(step * kGlobalBatch + i)));
    }
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(seen.size(), 5u * kGlobalBatch);
  }
}

TEST(Sampler, SeedsGiveOtherOrders) {
  const Sampler a(10000, 10, 1, SampleOrder::kShuffled, "x"), b(10000, 10, 2, SampleOrder::kShuffled, "x");
  int same = 0;
  for (uint64_t i = 0; i < 500; ++i) same += a.window_begin(i) == b.window_begin(i);
  EXPECT_LE(same, 10);
}

// Pins the order, because a change would silently change what resumed runs read.
TEST(Sampler, OrderIsPinned) {
  const Sampler sampler(1001, 10, 1, SampleOrder::kShuffled, "x");
  std::vector<int64_t> first;
  for (uint64_t i = 0; i < 5; ++i) first.push_back(sampler.window_begin(i) / 10);
  EXPECT_THAT(first, ::testing::ElementsAre(82, 39, 35, 99, 24));
}

TEST(Sampler, SequentialOrderStartsAtTheFront) {
  const Sampler sampler(1005, 10, 1, SampleOrder::kSequential, "validation data");
  EXPECT_EQ(sampler.window_begin(0), 0);
  EXPECT_EQ(sampler.window_begin(1), 10);
  EXPECT_EQ(sampler.window_begin(99), 990);
  EXPECT_EQ(sampler.window_begin(100), 0);
}

TEST(Sampler, RefusesTooLittleData) {
  EXPECT_EQ(Sampler(11, 10, 1, SampleOrder::kShuffled, "x").windows(), 1);
  EXPECT_THAT(testing::message_of<DataError>([] { Sampler(10, 10, 1, SampleOrder::kShuffled, "training data"); }),
              ::testing::HasSubstr("the training data has 10 tokens, one window needs 11"));
}

}  // namespace
}  // namespace mantissa
