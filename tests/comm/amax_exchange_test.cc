// Ranks with different data have the same scales, step after step.
#include "comm/amax_exchange.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "comm/local/rank_threads.h"
#include "core/kernels/quantize/args.h"
#include "core/tensor/philox.h"
#include "tests/comm/training_rank.h"
#include "tests/testing/precisions.h"

namespace mantissa {
namespace {

constexpr int kSteps = 50;
constexpr int32_t kHistory = 4;

Precision delayed_precision() {
  Precision precision = testing::autocast(DType::kBF16);
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles)
      precision.linear.set(product, role, TensorFormat{Format::kE4M3, Scaling::kDelayed});
  }
  return precision;
}

// In some steps some ranks overflow.
float amax_of(int step, int rank, size_t tensor) {
  const uint32_t word =
      philox(7, {static_cast<uint32_t>(step), static_cast<uint32_t>(rank), static_cast<uint32_t>(tensor), 0})[0];
  if (word % 16 == 0) return INFINITY;
  return std::ldexp(1.0f + uniform01(word), static_cast<int>(word % 20) - 10);
}

class AmaxExchangeTest : public ::testing::TestWithParam<int> {};

TEST_P(AmaxExchangeTest, AllRanksHaveTheScalesOfTheLargestAmax) {
  const int ranks = GetParam();
  std::vector<std::vector<float>> scales(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& communicator) {
    testing::TrainingRank rank(communicator, {});
    const UniformPrecision policy(delayed_precision());
    DelayedScales state(rank.parameters, policy, {.history = kHistory}, *rank.backend, *rank.stream);
    AmaxExchange exchange(state, communicator, *rank.backend, *rank.stream);
    auto& mine = scales[static_cast<size_t>(communicator.rank())];
    std::vector<QuantizeRecord> records(static_cast<size_t>(state.records().numel()) / sizeof(QuantizeRecord));
    ASSERT_FALSE(records.empty());
    for (int step = 0; step < kSteps; ++step) {
      for (size_t t = 0; t < records.size(); ++t) {
        records[t].amax = std::bit_cast<uint32_t>(amax_of(step, communicator.rank(), t));
      }
      rank.backend->upload(records.data(), state.records(), *rank.stream);
      exchange.run({});
      const std::vector<float> now = state.state().scales;
      mine.insert(mine.end(), now.begin(), now.end());
    }
  });
  for (const auto& other : scales) EXPECT_EQ(other, scales[0]);

  // Tensor 0, written out: the largest finite entry of the last four steps, where a step with an overflow on any rank
  // has none.
  const size_t tensors = scales[0].size() / kSteps;
  float expected = 1.0f;
  for (int step = 0; step < kSteps; ++step) {
    float largest = 0.0f;
    for (int s = std::max(0, step - kHistory + 1); s <= step; ++s) {
      float amax = 0.0f;
      for (int rank = 0; rank < ranks; ++rank) amax = std::max(amax, amax_of(s, rank, 0));
      if (std::isfinite(amax)) largest = std::max(largest, amax);
    }
    if (largest > 0.0f) expected = 448.0f / largest;
    EXPECT_EQ(scales[0][static_cast<size_t>(step) * tensors], expected) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AmaxExchangeTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace mantissa
