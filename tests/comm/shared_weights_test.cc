// Ranks with shared memory share a copy of the working weights; other ranks gather them.
#include <gtest/gtest.h>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include "comm/communicator.h"
#include "comm/sharded_optimizer.h"
#include "core/autograd/derived_weights.h"
#include "tests/comm/node_ranks.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

using testing::kOptions;
using testing::kSeed;
using testing::OptimizedRank;
using testing::toy_gradient;
using testing::TrainingRank;

// Whether other ranks see rank 0's writes to its weights.
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

// Rank 0 may start its update while rank 1 still computes: weights must not change before rank 1 updates too.
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

// Loading overwrites weights without masters, so it must wait until every rank loads.
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

// ---- Gathers of working weights.

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

// Gathers run on their own stream, so that they overlap the updates.
class GatherStreams final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    streams.insert(&stream);
    return ForwardingCommunicator::all_gather(send, recv, stream);
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

// Gathers whose data arrives when somebody waits for them.
class LateGathers final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    class Late final : public Work {
     public:
      Late(LateGathers& owner, std::function<std::unique_ptr<Work>()> start)
          : owner_(owner), start_(std::move(start)) {}
      bool test() override { return !start_; }
      void wait() override {
        if (!start_) return;
        std::exchange(start_, nullptr)()->wait();
        ++owner_.arrived;
      }

     private:
      LateGathers& owner_;
      std::function<std::unique_ptr<Work>()> start_;
    };
    started.push_back(recv.raw());
    return std::make_unique<Late>(
        *this, [this, send, recv, &stream] { return ForwardingCommunicator::all_gather(send, recv, stream); });
  }
  std::vector<const void*> started;
  int arrived = 0;
};

TEST(WeightGather, AreGatheredInForwardOrderAndAwaitedAtFirstUse) {
  run_ranks(2, [&](Communicator& local) {
    OptimizedRank plain(local, {});
    const uint64_t expected = plain.hash_after(2, [](int) { return testing::GradientFunction(toy_gradient); });
    LateGathers communicator(local);
    OptimizedRank rank(communicator, {});
    rank.optimizer.initialize(kSeed);
    DerivedWeights weights(*rank.backend);
    const auto use = [&](int parameter) {
      weights.cast(rank.parameters[parameter], rank.parameters[parameter].working_dtype, *rank.stream);
    };
    for (int step = 0; step < 2; ++step) {
      rank.reduce();
      communicator.started.clear();
      communicator.arrived = 0;
      rank.update(rank.optimizer, rank.adamw, 1e-2 / (step + 1), 0.25, Await::kAtFirstUse);
      const int buckets = rank.buckets->size();
      ASSERT_GT(buckets, 2);
      EXPECT_EQ(communicator.arrived, 0);
      std::vector<const void*> forward;
      for (int bucket = buckets - 1; bucket >= 0; --bucket) forward.push_back(rank.buckets->weight(bucket).raw());
      EXPECT_EQ(communicator.started, forward);
      const int first = rank.buckets->layout().bucket(buckets - 1).segments.back().parameter;
      use(first);
      EXPECT_EQ(communicator.arrived, 1) << "nobody waits for what is used later";
      use(rank.buckets->layout().bucket(0).segments[0].parameter);
      EXPECT_EQ(communicator.arrived, buckets);
      use(first);
      EXPECT_EQ(communicator.arrived, buckets);
    }
    EXPECT_EQ(rank.hash(), expected);
    // The next update writes weights that pending gathers read.
    rank.reduce();
    rank.update(rank.optimizer, rank.adamw, 1e-2, 0.25, Await::kAtFirstUse);
    communicator.arrived = 0;
    rank.reduce();
    rank.update(rank.optimizer, rank.adamw, 1e-2, 0.25, Await::kAtFirstUse);
    EXPECT_EQ(communicator.arrived, rank.buckets->size());
    rank.optimizer.await_weights();
  });
}

}  // namespace
}  // namespace mantissa
