// Ranks that share memory have one copy of the working weights between them.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/local/rank_threads.h"
#include "tests/comm/node_ranks.h"
#include "tests/comm/optimized_rank.h"
#include "tests/comm/state_formats.h"

namespace mantissa {
namespace {

using testing::OptimizedRank;
using testing::toy_gradient;

// Whether what rank 0 writes into its weights is there on the other ranks.
void expect_common(OptimizedRank& rank, bool common) {
  EXPECT_EQ(rank.buckets->weights_in_common(), common);
  std::byte& byte = rank.buckets->weight(0).raw()[0];
  const std::byte before = byte;
  rank.communicator.barrier();
  if (rank.communicator.rank() == 0) byte = ~byte;
  rank.communicator.barrier();
  EXPECT_EQ(byte != before, rank.communicator.rank() == 0 || common);
  rank.communicator.barrier();
}

TEST(CommonWeights, HoldTheBitsOfACopyForEachRank) {
  for (const int ranks : {2, 3}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      for (const testing::NamedState& state : testing::named_states()) {
        run_ranks(ranks, [&](Communicator& local) {
          const ReducerConfig config{.wire = DType::kBF16, .sharding = sharding};
          const auto gradient = [](int) { return toy_gradient; };
          testing::NodeCommunicator node(local);
          OptimizedRank alone(local, config, state.options), together(node, config, state.options);
          EXPECT_EQ(together.hash_after(4, gradient), alone.hash_after(4, gradient));
          expect_common(alone, false);
          expect_common(together, sharding == Sharding::kSharded);
        });
      }
    }
  }
}

// Rank 1 goes on computing with the weights after rank 0 has begun to update: they must stay until it comes, too.
TEST(CommonWeights, StayUntilEveryRankUpdates) {
  run_ranks(2, [](Communicator& local) {
    testing::NodeCommunicator communicator(local);
    OptimizedRank rank(communicator, {.wire = DType::kBF16});
    rank.optimizer.initialize(testing::kSeed);
    for (int step = 0; step < 3; ++step) {
      const uint64_t before = rank.hash();
      rank.reduce();
      if (communicator.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        EXPECT_EQ(rank.hash(), before);
      }
      rank.update(rank.optimizer, testing::kOptions, 1e-2);
      EXPECT_NE(rank.hash(), before);
      communicator.barrier();
    }
  });
}

// Weights that are their own state are written when they are loaded: not before every rank has come to that.
TEST(CommonWeights, StayUntilEveryRankLoads) {
  run_ranks(2, [](Communicator& local) {
    testing::NodeCommunicator communicator(local);
    AdamWOptions options = testing::kOptions;
    options.master = MasterWeights::kNoneStochastic;
    OptimizedRank rank(communicator, {.wire = DType::kBF16}, options);
    rank.optimizer.initialize(testing::kSeed);
    const uint64_t before = rank.hash();
    communicator.barrier();
    if (communicator.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      EXPECT_EQ(rank.hash(), before);
    }
    rank.optimizer.begin_load();
    for (int index = 0; index < rank.parameters.size(); ++index) {
      const std::vector<float> ones(static_cast<size_t>(rank.parameters[index].numel()), 1.0f);
      rank.optimizer.load({.parameter = index, .begin = 0, .weights = ones});
    }
    rank.optimizer.end_load(0);
    EXPECT_NE(rank.hash(), before);
    communicator.barrier();
  });
}

TEST(CommonWeights, AreRefusedByReplicatedRanks) {
  run_ranks(2, [](Communicator& local) {
    testing::NodeCommunicator communicator(local);
    testing::TrainingRank rank(communicator, {.sharding = Sharding::kSharded});
    EXPECT_THROW(ShardedOptimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, Sharding::kReplicated, {}),
                 ContractError);
  });
}

}  // namespace
}  // namespace mantissa
