// The reductions that tests go through: numbers of ranks, wire dtypes, ways of adding, of holding the sums and of
// reading the contributions.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <tuple>

#include "comm/local/rank_threads.h"
#include "comm/wire_plan.h"
#include "tests/comm/node_ranks.h"

namespace mantissa::testing {

class ReducerTest : public ::testing::TestWithParam<std::tuple<int, DType, Accumulation, Sharding, ContributionPath>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  ReducerConfig config() const {
    return {
        .wire = std::get<1>(GetParam()), .accumulation = std::get<2>(GetParam()), .sharding = std::get<3>(GetParam())};
  }
  ContributionPath path() const { return ranks() > 1 ? std::get<4>(GetParam()) : ContributionPath::kExchanged; }
  // run_ranks() of ranks() whose reducers take path(): ranks that share memory read in place.
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
