// Statistics of reduced gradients: those of every bucket's shard, element by element.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "comm/gradient_reducer.h"
#include "comm/local/local_communicator.h"
#include "tests/comm/node_ranks.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace gradient_statistics_test {

using testing::ReducerTest;
using testing::toy_gradient;
using testing::TrainingRank;

// The definition, element by element, for this rank's part of a bucket.
TensorStats stats_of(const TrainingRank& rank, int bucket) {
  const BucketLayout::Bucket& place = rank.buckets->layout().buckets()[static_cast<size_t>(bucket)];
  const Tensor shard = rank.reducer->result_shard(bucket);
  EXPECT_EQ(shard.numel(), place.shard_numel);
  TensorStats stats;
  for (int64_t i = 0; i < shard.numel(); ++i) {
    const auto value = static_cast<double>(shard.data<float>()[i]);
    stats.sum_squares += value * value;
    if (std::isfinite(value)) continue;
    stats.first_bad = std::min(stats.first_bad, place.flat_begin + rank.communicator.rank() * place.shard_numel + i);
    ++(std::isnan(value) ? stats.nan_count : stats.inf_count);
  }
  return stats;
}

void expect_stats_of_shards(const TrainingRank& rank) {
  ASSERT_EQ(rank.reducer->stats().size_bytes(), static_cast<size_t>(rank.buckets->size()) * sizeof(TensorStats));
  for (int bucket = 0; bucket < rank.buckets->size(); ++bucket) {
    TensorStats actual;
    std::memcpy(&actual, rank.reducer->stats().raw() + static_cast<size_t>(bucket) * sizeof(actual), sizeof(actual));
    const TensorStats expected = stats_of(rank, bucket);
    EXPECT_EQ(actual.first_bad, expected.first_bad) << "bucket " << bucket;
    EXPECT_EQ(actual.nan_count, expected.nan_count) << "bucket " << bucket;
    EXPECT_EQ(actual.inf_count, expected.inf_count) << "bucket " << bucket;
    EXPECT_EQ(std::isfinite(actual.sum_squares), std::isfinite(expected.sum_squares)) << "bucket " << bucket;
    if (!std::isfinite(expected.sum_squares)) continue;
    // A shard is at most 6464 positive doubles, added in two orders: a relative error of at most 2^13 * 2^-53 each.
    EXPECT_NEAR(actual.sum_squares, expected.sum_squares, expected.sum_squares * 0x1p-39) << "bucket " << bucket;
  }
}

class GradientStatistics : public ReducerTest {};

TEST_P(GradientStatistics, AreThoseOfEveryBucketsShard) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  // Both ends of parameters in different buckets, from different ranks; a sum of opposite infinities is NaN.
  const auto poisoned = [last = ranks() - 1](int rank, int parameter, int64_t element) {
    if (parameter == 8 && element == 4025 && rank == 0) return kNan;
    if (parameter == 6 && (element == 0 || element == 4287) && rank == last) return kInf;
    if (parameter == 3 && element == 70) return rank == 0 ? kInf : -kInf;
    if (parameter == 0 && element % 2000 == 1999 && rank == last) return kNan;
    return toy_gradient(rank, parameter, element);
  };
  run([&](Communicator& communicator) {
    TrainingRank rank(communicator, config());
    rank.reduce(poisoned);
    expect_stats_of_shards(rank);
    rank.reduce();  // must not add to the first result
    expect_stats_of_shards(rank);
    rank.reduce(poisoned);
    expect_stats_of_shards(rank);
  });
}

// Gradients as large as a wire allows.
TEST(PrescaledGradients, HaveTheStatisticsOfTheResult) {
  for (const DType wire : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      run_ranks(2, [&](Communicator& communicator) {
        TrainingRank rank(communicator, {.wire = wire, .sharding = sharding, .prescale_log2 = 10});
        rank.reduce(
            [](int r, int parameter, int64_t element) { return 1024.0f * toy_gradient(r, parameter, element); });
        expect_stats_of_shards(rank);
        if (wire != DType::kBF16) return;
        rank.reduce([](int, int parameter, int64_t) { return parameter == 4 ? 0x1p127f : 0.0f; });  // 2^128 is Inf
        expect_stats_of_shards(rank);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, GradientStatistics, testing::reducer_cases());

}  // namespace gradient_statistics_test
}  // namespace mantissa
