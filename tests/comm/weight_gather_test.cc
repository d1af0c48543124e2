// How sharded optimizers gather the working weights.
#include <gtest/gtest.h>

#include <set>

#include "comm/local/rank_threads.h"
#include "comm/sharded_optimizer.h"
#include "tests/comm/borrowed_communicator.h"
#include "tests/comm/optimized_rank.h"
#include "tests/comm/recorded_registrations.h"

namespace mantissa {
namespace {

using testing::kOptions;
using testing::kSeed;
using testing::TrainingRank;

TEST(WeightGather, BuffersAreRegistered) {
  for (const int ranks : {1, 2, 3}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      run_ranks(ranks, [&](Communicator& local) {
        TrainingRank rank(local, {.sharding = sharding});
        testing::RecordedRegistrations communicator(local);
        {
          ShardedOptimizer optimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, sharding, kOptions);
          const bool gathers = ranks > 1 && sharding == Sharding::kSharded;
          EXPECT_EQ(communicator.registered(), gathers ? static_cast<size_t>(rank.buckets->size()) : 0u);
          optimizer.initialize(kSeed);
          EXPECT_EQ(communicator.inside(), gathers ? 2 * rank.buckets->size() : 0);
          EXPECT_EQ(communicator.outside(), 0);
        }
        EXPECT_EQ(communicator.registered(), 0u);
      });
    }
  }
}

// On a stream of their own, so that they overlap the updates.
class GatherStreams final : public testing::BorrowedCommunicator {
 public:
  using BorrowedCommunicator::BorrowedCommunicator;
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    streams.insert(&stream);
    return BorrowedCommunicator::all_gather(send, recv, stream);
  }
  std::set<const Stream*> streams;
};

TEST(WeightGather, RunsBesideTheUpdates) {
  run_ranks(2, [&](Communicator& local) {
    TrainingRank rank(local, {.sharding = Sharding::kSharded});
    GatherStreams communicator(local);
    ShardedOptimizer optimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, Sharding::kSharded, kOptions);
    optimizer.initialize(kSeed);
    EXPECT_EQ(communicator.streams.size(), 1u);
    EXPECT_FALSE(communicator.streams.contains(rank.stream.get()));
  });
}

}  // namespace
}  // namespace mantissa
