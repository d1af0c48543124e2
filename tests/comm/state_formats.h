// The formats that optimizer state can have, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/optim/adamw.h"

namespace mantissa::testing {

struct NamedState {
  std::string name;
  AdamWOptions options;
  double bytes;  // an element of a large bf16 matrix, of masters (or compensations) and moments, without scales
};

// Every way to keep each of weights, first and second moments, with every other way of the other two at least once.
inline std::vector<NamedState> named_states() {
  using M = MomentFormat;
  using W = MasterWeights;
  const auto state = [](const char* name, M first, M second, W master, double bytes) {
    AdamWOptions options{.beta2 = 0.95f, .weight_decay = 0.1f};
    options.first_moment = first;
    options.second_moment = second;
    options.master = master;
    options.seed = 11;
    return NamedState{name, options, bytes};
  };
  return {state("fp32_all", M::kF32, M::kF32, W::kF32, 12),
          state("bf16_m", M::kBF16, M::kF32, W::kF32, 10),
          state("bf16_m_v", M::kBF16, M::kBF16Stochastic, W::kF32, 8),
          state("bf16_v", M::kF32, M::kBF16Stochastic, W::kF32, 10),
          state("codes", M::kBlockwise8Bit, M::kBlockwise8Bit, W::kF32, 6),
          state("codes_m_bf16_v", M::kBlockwise8Bit, M::kBF16Stochastic, W::kF32, 7),
          state("bf16_m_codes_v", M::kBF16, M::kBlockwise8Bit, W::kF32, 7),
          state("no_master", M::kF32, M::kF32, W::kNoneStochastic, 8),
          state("no_master_bf16_m_v", M::kBF16, M::kBF16Stochastic, W::kNoneStochastic, 4),
          state("no_master_codes", M::kBlockwise8Bit, M::kBlockwise8Bit, W::kNoneStochastic, 2),
          state("kahan", M::kF32, M::kF32, W::kKahan, 10),
          state("kahan_bf16_m_v", M::kBF16, M::kBF16Stochastic, W::kKahan, 6),
          state("kahan_codes", M::kBlockwise8Bit, M::kBlockwise8Bit, W::kKahan, 4)};
}

inline std::string name_of(const ::testing::TestParamInfo<NamedState>& info) { return info.param.name; }

}  // namespace mantissa::testing
