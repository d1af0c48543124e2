// The reductions that tests go through: numbers of ranks, wire dtypes, ways of adding and of holding the sums.
#pragma once

#include <gtest/gtest.h>

#include <tuple>

#include "comm/reducer_config.h"

namespace mantissa::testing {

class ReducerTest : public ::testing::TestWithParam<std::tuple<int, DType, Accumulation, Sharding>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  ReducerConfig config() const {
    return {
        .wire = std::get<1>(GetParam()), .accumulation = std::get<2>(GetParam()), .sharding = std::get<3>(GetParam())};
  }
};

inline auto reducer_cases() {
  return ::testing::Combine(::testing::Values(1, 2, 3, 4, 5), ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                            ::testing::Values(Accumulation::kFp32, Accumulation::kWire),
                            ::testing::Values(Sharding::kSharded, Sharding::kReplicated));
}

}  // namespace mantissa::testing
