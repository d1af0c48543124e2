// Threads as ranks with shared memory, like a node's ranks, and a fixture for tests of reductions.
#pragma once

#include <gtest/gtest.h>
#include <functional>
#include <memory>
#include <thread>
#include <tuple>

#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "comm/local/local_communicator.h"
#include "comm/node/node_exchange.h"
#include "tests/comm/training_rank.h"

namespace mantissa::testing {

class NodeCommunicator : public ForwardingCommunicator {
 public:
  // Collective. The ranks of `inner` form the node.
  explicit NodeCommunicator(Communicator& inner) : ForwardingCommunicator(inner), exchanges_(ranks()) {}
  explicit NodeCommunicator(std::unique_ptr<Communicator> inner)
      : ForwardingCommunicator(std::move(inner)), exchanges_(ranks()) {}

  std::unique_ptr<Communicator> split(int color, int members) override {
    return std::make_unique<NodeCommunicator>(ForwardingCommunicator::split(color, members));
  }

  std::shared_ptr<Storage> allocate_shared(size_t bytes, const char*) override { return exchanges_.allocate(bytes); }
  SharedRows rows_of_all(const Tensor& mine) const override { return exchanges_.rows_of_all(mine); }
  std::unique_ptr<Work> node_barrier(Stream&) override {
    return std::make_unique<BarrierWork>(exchanges_, exchanges_.start(barrier_request(exchanges_.node())));
  }

 private:
  NodeRanks ranks() {
    return {.rank = rank(), .size = size(), .gather = [this](auto mine) { return all_gather_bytes(mine); }};
  }

  class BarrierWork final : public Work {
   public:
    BarrierWork(NodeExchanges& exchanges, uint64_t number) : exchanges_(exchanges), number_(number) {}
    bool test() override {
      exchanges_.advance();
      return exchanges_.done(number_);
    }
    void wait() override {
      while (!test()) std::this_thread::yield();
    }

   private:
    NodeExchanges& exchanges_;
    uint64_t number_;
  };

  NodeExchanges exchanges_;
};

inline float round_to(DType dtype, float value) {
  return dispatch(dtype, [&]<typename T>() { return to_float(from_float<T>(value)); });
}

// The definition of a reduction, for one element.
inline float expected_sum(const ReducerConfig& config, int lanes, int parameter, int64_t element,
                          const GradientFunction& gradient = toy_gradient) {
  if (lanes == 1) return gradient(0, parameter, element);
  const WireScale scale = wire_scale(config, lanes);
  const auto leaf = [&](int lane) { return round_to(config.wire, gradient(lane, parameter, element) * scale.before); };
  const auto round = [&](float sum) {
    return config.accumulation == Accumulation::kWire ? round_to(config.wire, sum) : sum;
  };
  return tree_sum(0, lanes, leaf, round) * scale.after;
}

class ReducerTest : public ::testing::TestWithParam<std::tuple<int, DType, Accumulation, Sharding, ContributionPath>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  ReducerConfig config() const {
    return {
        .wire = std::get<1>(GetParam()), .accumulation = std::get<2>(GetParam()), .sharding = std::get<3>(GetParam())};
  }
  ContributionPath path() const { return ranks() > 1 ? std::get<4>(GetParam()) : ContributionPath::kExchanged; }
  // Runs ranks() ranks with reducers on path(). Ranks that share memory read in place.
  void run(const std::function<void(Communicator&)>& body) const {
    run_ranks(ranks(), [&](Communicator& local) {
      if (path() == ContributionPath::kExchanged) return body(local);
      NodeCommunicator node(local);
      body(node);
    });
  }
};

inline auto reducer_cases() {
  return ::testing::Combine(::testing::Values(1, 2, 3, 4, 5), ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                            ::testing::Values(Accumulation::kFp32, Accumulation::kWire),
                            ::testing::Values(Sharding::kSharded, Sharding::kReplicated),
                            ::testing::Values(ContributionPath::kExchanged, ContributionPath::kInPlace));
}

}  // namespace mantissa::testing
