#include "core/io/batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/base/check.h"
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
  // One position of 16 is always chosen, the others with probability 0.15. Bounds are 5 standard deviations of n draws.
  EXPECT_NEAR(predicted / (kSamples * kContext), (1 + 15 * 0.15) / 16, 5 * 0.36 / std::sqrt(32000.0));
  EXPECT_NEAR(hidden / predicted, 0.8, 5 * 0.4 / std::sqrt(predicted));
  EXPECT_NEAR(kept / predicted, 0.1 + 0.1 / 256, 5 * 0.3 / std::sqrt(predicted));
}

}  // namespace
}  // namespace mantissa
