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

class NodeCommunicator : public ForwardingCommunicator, private NodeMemory {
 public:
  // Collective. The ranks of `inner` form the node.
  explicit NodeCommunicator(Communicator& inner) : ForwardingCommunicator(inner), exchanges_(ranks()) {}
  explicit NodeCommunicator(std::unique_ptr<Communicator> inner)
      : ForwardingCommunicator(std::move(inner)), exchanges_(ranks()) {}

  std::unique_ptr<Communicator> split(int color, int members) override {
    return std::make_unique<NodeCommunicator>(ForwardingCommunicator::split(color, members));
  }

  NodeMemory* node_memory() override { return this; }
  std::shared_ptr<Storage> allocate(size_t bytes, const char*) override { return exchanges_.allocate(bytes); }
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

// Tells ranks of a machine to be on several nodes.
class PretendedNodes : public ForwardingCommunicator {
 public:
  PretendedNodes(Communicator& inner, int node_ranks)
      : ForwardingCommunicator(inner, {.rank = inner.rank(),
                                       .size = inner.size(),
                                       .local_rank = inner.rank() % node_ranks,
                                       .local_size = node_ranks}) {}
};

inline float round_to(DType dtype, float value) {
  return dispatch(dtype, [&]<typename T>() { return to_float(from_float<T>(value)); });
}

// The number of the 8-bit code of an element, by the definition: a block is 32 elements of the parameter.
inline float coded(DType wire, const GradientFunction& gradient, int lane, int parameter, int64_t element) {
  static const std::vector<int64_t> numels = [] {
    ParameterSet toy;
    add_toy_parameters(toy);
    std::vector<int64_t> counts;
    for (int i = 0; i < toy.size(); ++i) counts.push_back(toy[i].numel());
    return counts;
  }();
  const Format format = format_of(wire);
  const int64_t begin = element / 32 * 32, end = std::min(begin + 32, numels[static_cast<size_t>(parameter)]);
  double amax = 0.0;
  for (int64_t i = begin; i < end; ++i) {
    amax = std::max(amax, std::abs(static_cast<double>(gradient(lane, parameter, i))));
  }
  int exponent = std::max(-127, std::ilogb(amax) - 20);
  while (amax > std::ldexp(info(format).max, exponent)) ++exponent;
  const float scaled = std::ldexp(gradient(lane, parameter, element), -exponent);
  return std::ldexp(quantize(format, scaled, Saturation::kNo), exponent);
}

// The definition of a reduction, for one element.
inline float expected_sum(const ReducerConfig& config, int lanes, int parameter, int64_t element,
                          const GradientFunction& gradient = toy_gradient) {
  if (lanes == 1) return gradient(0, parameter, element);
  const WireScale scale = wire_scale(config, lanes);
  const auto leaf = [&](int lane) {
    return is_coded(config.wire) ? coded(config.wire, gradient, lane, parameter, element)
                                 : round_to(config.wire, gradient(lane, parameter, element) * scale.before);
  };
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

inline auto coded_cases() {
  return ::testing::Combine(::testing::Values(1, 2, 3, 4, 5), ::testing::Values(DType::kE4M3, DType::kE5M2),
                            ::testing::Values(Accumulation::kFp32),
                            ::testing::Values(Sharding::kSharded, Sharding::kReplicated),
                            ::testing::Values(ContributionPath::kExchanged, ContributionPath::kInPlace));
}

inline auto reducer_cases() {
  return ::testing::Combine(::testing::Values(1, 2, 3, 4, 5), ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                            ::testing::Values(Accumulation::kFp32, Accumulation::kWire),
                            ::testing::Values(Sharding::kSharded, Sharding::kReplicated),
                            ::testing::Values(ContributionPath::kExchanged, ContributionPath::kInPlace));
}

}  // namespace mantissa::testing
