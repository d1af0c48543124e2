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

class OrderedGathers final : public ForwardingCommunicator {
 public:
  OrderedGathers(Communicator& inner, bool by_stream) : ForwardingCommunicator(inner), by_stream_(by_stream) {}
  bool can_be_captured() const override { return by_stream_; }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    started.push_back(recv.raw());
    return ForwardingCommunicator::all_gather(send, recv, stream);
  }
  std::vector<const void*> started;

 private:
  const bool by_stream_;
};

class CountedWaits final : public Stream {
 public:
  std::unique_ptr<Event> record() override { return HostStream().record(); }
  void wait(const Event& /*event*/) override { ++waits; }
  void synchronize() override {}
  int waits = 0;
};

// As work of a stream, as with NCCL, or by messages that somebody must move.
class WeightGatherBy : public ::testing::TestWithParam<const char*> {};

TEST_P(WeightGatherBy, IsInForwardOrderAndAwaitedAtFirstUse) {
  const bool by_stream = GetParam() == std::string_view("stream");
  std::atomic<int> first_has_updated = 0;
  run_ranks(2, [&](Communicator& local) {
    OrderedGathers communicator(local, by_stream);
    TrainingRank rank(communicator, {});
    CountedWaits compute;
    ShardedOptimizer optimizer(*rank.buckets, communicator, *rank.backend, compute, Sharding::kSharded, kOptions);
    optimizer.initialize(kSeed);
    DerivedWeights weights(*rank.backend);
    const auto waits_of_use = [&](int parameter) {
      const int before = compute.waits;
      weights.cast(rank.parameters[parameter], rank.parameters[parameter].working_dtype, compute);
      return compute.waits - before;
    };
    const int buckets = rank.buckets->size();
    ASSERT_GT(buckets, 2);
    std::vector<const void*> forward;
    for (int bucket = buckets - 1; bucket >= 0; --bucket) forward.push_back(rank.buckets->weight(bucket).raw());
    const int first = rank.buckets->layout().bucket(buckets - 1).segments.back().parameter;
    const int last = rank.buckets->layout().bucket(0).segments[0].parameter;
    int updates = 0;
    const auto update = [&] {
      rank.reduce();
      ++updates;
      while (!by_stream && local.rank() > 0 && first_has_updated < updates) std::this_thread::yield();
      const int before = compute.waits;
      communicator.started.clear();
      rank.start_update(optimizer, kOptions, 1e-2);
      if (local.rank() == 0) first_has_updated = updates;
      EXPECT_EQ(communicator.started, forward);
      return compute.waits - before;
    };
    EXPECT_EQ(update(), 0);
    const int first_waits = waits_of_use(first);
    EXPECT_GE(first_waits, 1);
    EXPECT_TRUE(first_waits == 1 || !by_stream) << "nobody waits for what is used later";
    EXPECT_EQ(waits_of_use(last), buckets - first_waits);
    EXPECT_EQ(waits_of_use(first), 0);
    EXPECT_EQ(update(), 0);
    EXPECT_EQ(update(), buckets) << "pending gathers read what an update writes";
    const int before = compute.waits;
    optimizer.await_weights();
    EXPECT_EQ(compute.waits - before, buckets);
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, WeightGatherBy, ::testing::Values("stream", "messages"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace mantissa
