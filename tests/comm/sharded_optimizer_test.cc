// Weight updates of sharded and replicated optimizers.
#include <gtest/gtest.h>
#include <cmath>
#include <set>

#include "comm/communicator.h"
#include "comm/local/local_communicator.h"
#include "comm/sharded_optimizer.h"
#include "core/tensor/philox.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

using testing::kOptions;
using testing::kSeed;
using testing::OptimizedRank;
using testing::toy_gradient;
using testing::TrainingRank;

// A gradient whose sum over 1 to 5 ranks is exact and the same: the k-th of `ranks` parts of a multiple of 60 / 1024.
testing::GradientFunction exact_parts(int ranks, uint32_t step) {
  return [=](int, int parameter, int64_t element) {
    const auto word = philox(step, {static_cast<uint32_t>(element), static_cast<uint32_t>(parameter), 0, 0x5a5au})[0];
    const int units = 60 * (static_cast<int>(word % 401) - 200);
    return static_cast<float>(units / ranks) / 1024.0f;
  };
}

// Hash of the working weights after some steps; all ranks must agree.
uint64_t hash_after(int ranks, const ReducerConfig& config, int steps,
                    const std::function<testing::GradientFunction(int)>& gradient,
                    const AdamWOptions& options = kOptions, DType low = DType::kBF16,
                    int64_t capacity_bytes = testing::kToyCapacityBytes) {
  std::vector<uint64_t> hashes(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& communicator) {
    OptimizedRank rank(communicator, config, options, low, capacity_bytes);
    hashes[static_cast<size_t>(communicator.rank())] = rank.hash_after(steps, gradient);
    EXPECT_EQ(rank.optimizer.applied_steps(), steps);
  });
  for (const uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]) << "ranks hold different weights";
  return hashes[0];
}

class OptimizerTest : public ::testing::TestWithParam<int> {};

TEST_P(OptimizerTest, ShardedAndReplicatedTrainAlikeBitForBitOnEveryWire) {
  const auto run = [&](Sharding sharding, const AdamWOptions& options, DType wire = DType::kF32) {
    return hash_after(
        GetParam(), {.wire = wire, .sharding = sharding}, 5,
        [](int step) { return [step](int r, int p, int64_t e) { return toy_gradient(r + 10 * step, p, e); }; },
        options);
  };
  for (const testing::NamedState& state : testing::named_states()) {
    EXPECT_EQ(run(Sharding::kSharded, state.options), run(Sharding::kReplicated, state.options)) << state.name;
  }
  for (const DType wire : {DType::kBF16, DType::kF16}) {
    EXPECT_EQ(run(Sharding::kSharded, kOptions, wire), run(Sharding::kReplicated, kOptions, wire)) << name(wire);
  }
}

TEST_P(OptimizerTest, TheNumberOfRanksChangesNoBitWhenTheSumsAreExact) {
  const int ranks = GetParam();
  const auto run = [](int n, const AdamWOptions& options, int64_t capacity_bytes = testing::kToyCapacityBytes) {
    return hash_after(
        n, {.wire = DType::kF32}, 5, [n](int step) { return exact_parts(n, static_cast<uint32_t>(step)); }, options,
        DType::kBF16, capacity_bytes);
  };
  std::set<uint64_t> different;
  for (const testing::NamedState& state : testing::named_states()) {
    const uint64_t one = run(1, state.options);
    EXPECT_EQ(run(ranks, state.options), one) << state.name;
    EXPECT_EQ(run(ranks, state.options, 20000 * sizeof(float)), one) << state.name << ", other buckets";
    different.insert(one);
  }
  EXPECT_EQ(different.size(), testing::named_states().size()) << "each rounds in its own way";
}

// Weights without masters, with second moments in bf16.
TEST_P(OptimizerTest, StatesThatAreRoundedStochasticallyDependOnTheSeed) {
  for (const testing::NamedState& state : testing::named_states()) {
    const bool random = state.options.master == MasterWeights::kNoneStochastic ||
                        state.options.second_moment == MomentFormat::kBF16Stochastic;
    const auto run = [&](uint64_t seed) {
      AdamWOptions options = state.options;
      options.seed = seed;
      return hash_after(
          GetParam(), {.wire = DType::kF32}, 5, [](int step) { return exact_parts(1, static_cast<uint32_t>(step)); },
          options);
    };
    EXPECT_EQ(run(kSeed) != run(kSeed + 1), random) << state.name;
  }
}

TEST(Optimizer, StateInBlocksNeedsALayoutOfBlocks) {
  run_ranks(1, [](Communicator& communicator) {
    const TrainingRank whole(communicator, {}), blocks(communicator, {}, DType::kBF16, testing::kToyCapacityBytes,
                                                       state_alignment(testing::named_states()[4].options));
    const auto make = [&](const TrainingRank& rank, const AdamWOptions& options) {
      ShardedOptimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, Sharding::kSharded, options);
    };
    EXPECT_NO_THROW(make(whole, kOptions));
    EXPECT_THROW(make(blocks, kOptions), ContractError);
    EXPECT_NO_THROW(make(blocks, testing::named_states()[4].options));
    EXPECT_THROW(make(whole, testing::named_states()[4].options), ContractError);
  });
}

TEST(Optimizer, WeightsInFp16NeedMasters) {
  run_ranks(1, [](Communicator& communicator) {
    for (const MasterWeights master : {MasterWeights::kNoneStochastic, MasterWeights::kKahan}) {
      AdamWOptions options = kOptions;
      options.master = master;
      EXPECT_THROW(OptimizedRank(communicator, {}, options, DType::kF16), ConfigError);
      EXPECT_NO_THROW(OptimizedRank(communicator, {}, options, DType::kF32));
    }
  });
}

// Small updates of weights without masters accumulate; each is a thousandth of half a bf16 step.
TEST(Optimizer, WeightsWithoutMastersMoveByLessThanAStep) {
  run_ranks(1, [](Communicator& communicator) {
    for (const MasterWeights master : {MasterWeights::kNoneStochastic, MasterWeights::kKahan}) {
      AdamWOptions options{.weight_decay = 0.0f, .master = master};
      OptimizedRank rank(communicator, {.wire = DType::kF32}, options);
      rank.optimizer.initialize(kSeed);
      const auto mean = [&] {
        double sum = 0.0;
        const Tensor& weight = rank.parameters[0].weight;
        for (int64_t i = 0; i < weight.numel(); ++i) sum += static_cast<double>(to_float(weight.data<BFloat16>()[i]));
        return sum / static_cast<double>(weight.numel());
      };
      const double before = mean();
      constexpr int kSteps = 100;
      constexpr double kRate = 1e-5;  // an update is m / sqrt(v) = 1; weights are about 0.5
      for (int step = 0; step < kSteps; ++step) rank.step([](int, int, int64_t) { return 1.0f; }, kRate);
      // Without compensation, the mean is off by 100 roundings of at most half of 2^-8 * 0.5 each.
      EXPECT_NEAR(mean(), before - kSteps * kRate, 4.0 * 0x1p-10 * std::sqrt(100.0 / 6464.0));
    }
  });
}

// Weights, including initial ones, do not depend on ranks, sharding or buckets.
TEST_P(OptimizerTest, StochasticRoundingDependsOnSeedAndUpdateOnly) {
  const auto run = [](int ranks, Sharding sharding, int steps, DType low, const AdamWOptions& options,
                      int64_t capacity_bytes = testing::kToyCapacityBytes) {
    return hash_after(
        ranks, {.wire = DType::kF32, .sharding = sharding}, steps,
        [ranks](int step) { return exact_parts(ranks, static_cast<uint32_t>(step)); }, options, low, capacity_bytes);
  };
  AdamWOptions options = kOptions;
  options.weight_rounding = WeightRounding::kStochastic;
  options.seed = kSeed;
  AdamWOptions other_seed = options;
  other_seed.seed = kSeed + 1;
  for (const DType low : {DType::kBF16, DType::kF16}) {
    for (const int steps : {0, 3}) {
      const uint64_t one = run(1, Sharding::kSharded, steps, low, options);
      EXPECT_EQ(run(GetParam(), Sharding::kSharded, steps, low, options), one);
      EXPECT_EQ(run(GetParam(), Sharding::kReplicated, steps, low, options), one);
      EXPECT_EQ(run(GetParam(), Sharding::kSharded, steps, low, options, 20000 * sizeof(float)), one);
      EXPECT_NE(run(GetParam(), Sharding::kSharded, steps, low, other_seed), one);
      EXPECT_NE(run(GetParam(), Sharding::kSharded, steps, low, kOptions), one) << "rounded to nearest";
    }
  }
}

TEST_P(OptimizerTest, EveryUpdateRoundsAnew) {
  run_ranks(GetParam(), [&](Communicator& communicator) {
    AdamWOptions options = kOptions;
    options.weight_rounding = WeightRounding::kStochastic;
    OptimizedRank rank(communicator, {.wire = DType::kF32}, options);
    rank.optimizer.initialize(kSeed);
    const uint64_t before = rank.hash();
    rank.step(toy_gradient, 0.0);  // masters do not change
    EXPECT_NE(rank.hash(), before);
  });
}

TEST_P(OptimizerTest, InitialWeightsDoNotDependOnTheNumberOfRanks) {
  const int ranks = GetParam();
  for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
    run_ranks(ranks, [&](Communicator& communicator) {
      OptimizedRank rank(communicator, {.sharding = sharding});
      const uint64_t version = rank.parameters[0].version;
      rank.optimizer.initialize(kSeed);
      EXPECT_GT(rank.parameters[0].version, version);
      for (int index = 0; index < rank.parameters.size(); ++index) {
        const Parameter& parameter = rank.parameters[index];
        std::vector<float> expected(static_cast<size_t>(parameter.numel()));
        initial_values(parameter, kSeed, 0, parameter.numel(), expected.data());
        int64_t wrong = 0;
        dispatch(parameter.working_dtype, [&]<typename T>() {
          const T* weight = parameter.weight.data<T>();
          for (size_t i = 0; i < expected.size(); ++i) wrong += !(weight[i] == from_float<T>(expected[i]));
        });
        EXPECT_EQ(wrong, 0) << parameter.name;
      }
    });
  }
}

TEST_P(OptimizerTest, UpdatesAreThoseOfAdamWInDouble) {
  run_ranks(GetParam(), [&](Communicator& communicator) {
    OptimizedRank rank(communicator, {.wire = DType::kF32});
    rank.optimizer.initialize(kSeed);
    constexpr int kSteps = 3;
    constexpr double kMultiplier = 0.125, kRate = 1e-2;
    for (int step = 0; step < kSteps; ++step) {
      rank.step(exact_parts(communicator.size(), static_cast<uint32_t>(step)), kRate, kMultiplier);
    }
    const double beta1 = static_cast<double>(kOptions.beta1), beta2 = static_cast<double>(kOptions.beta2);
    for (const StatePiece& piece : rank.optimizer.pieces()) {
      const Parameter& parameter = *piece.parameter;
      std::vector<float> initial(static_cast<size_t>(piece.count));
      initial_values(parameter, kSeed, piece.begin, piece.count, initial.data());
      const double decay = parameter.shape.rank() >= 2 ? 0.1 : 0.0;  // vectors have none
      int64_t wrong = 0;
      for (int64_t i = 0; i < piece.count; ++i) {
        double w = static_cast<double>(initial[static_cast<size_t>(i)]), m = 0.0, v = 0.0;
        for (int step = 0; step < kSteps; ++step) {
          const auto sum = exact_parts(1, static_cast<uint32_t>(step));
          const double g = kMultiplier * static_cast<double>(sum(0, parameter.index, piece.begin + i));
          m = beta1 * m + (1.0 - beta1) * g;
          v = beta2 * v + (1.0 - beta2) * g * g;
          w -= kRate * decay * w;
          w -= kRate * (m / (1.0 - std::pow(beta1, step + 1))) /
               (std::sqrt(v / (1.0 - std::pow(beta2, step + 1))) + static_cast<double>(kOptions.epsilon));
        }
        // Summed gradients are exact. A step rounds the weight (at most 2.5) twice. It computes the update in about ten
        // operations on values of at most twice the learning rate. Moments that cancel add only their absolute error,
        // because sqrt(v / c2) is at least half of the largest gradient so far.
        const double bound = kSteps * (2 * 2.5 + 2 * 10 * kRate) * 0x1p-24;
        wrong += !(std::abs(static_cast<double>(piece.master.data<float>()[i]) - w) <= bound);
      }
      EXPECT_EQ(wrong, 0) << parameter.name;
    }
  });
}

std::vector<testing::NamedState> skipped_states() {
  std::vector<testing::NamedState> states = testing::named_states();
  states.push_back(states[0]);
  states.back().name = "stochastic_weights";
  states.back().options.weight_rounding = WeightRounding::kStochastic;
  return states;
}

class SkippedStep : public ::testing::TestWithParam<std::tuple<int, Sharding, testing::NamedState>> {};

TEST_P(SkippedStep, TouchesNothing) {
  const auto [ranks, sharding, state] = GetParam();
  const AdamWOptions options = state.options;
  run_ranks(ranks, [&](Communicator& communicator) {
    OptimizedRank rank(communicator, {.sharding = sharding}, options);
    rank.optimizer.initialize(kSeed);
    rank.step();
    const auto snapshot = [&] {
      std::vector<std::byte> bytes;
      for (const StatePiece& piece : rank.optimizer.pieces()) {
        for (const Tensor& tensor :
             {piece.master, piece.weight, piece.compensation, piece.m, piece.v, piece.m_absmax, piece.v_absmax}) {
          if (!tensor.defined()) continue;
          bytes.insert(bytes.end(), tensor.raw(), tensor.raw() + tensor.size_bytes());
        }
      }
      return bytes;
    };
    const auto before = snapshot();
    const uint64_t hash = rank.hash(), version = rank.parameters[2].version;
    rank.reduce([](int, int, int64_t) { return INFINITY; });
    VerdictReduction verdicts(communicator, *rank.backend, *rank.stream);
    EXPECT_FALSE(rank.verdict_of(verdicts, 0.0f).finite());
    rank.optimizer.step(*rank.reducer, verdicts.control());
    rank.optimizer.await_weights();
    EXPECT_EQ(snapshot(), before);
    EXPECT_EQ(rank.hash(), hash);
    EXPECT_EQ(rank.optimizer.applied_steps(), 1);
    rank.step();
    EXPECT_NE(snapshot(), before);
    EXPECT_NE(rank.hash(), hash);
    EXPECT_GT(rank.parameters[2].version, version);
  });
}

TEST_P(OptimizerTest, PaddingStaysZero) {
  for (const auto& [sharding, state] : {std::pair(Sharding::kSharded, 0),
                                        {Sharding::kReplicated, 0},
                                        {Sharding::kSharded, 9},
                                        {Sharding::kReplicated, 9}}) {
    const AdamWOptions options = testing::named_states()[static_cast<size_t>(state)].options;
    run_ranks(GetParam(), [&, sharding = sharding](Communicator& communicator) {
      OptimizedRank rank(communicator, {.sharding = sharding}, options);
      rank.optimizer.initialize(kSeed);
      for (int step = 0; step < 2; ++step) rank.step();
      int64_t wrong = 0, padding = 0;
      for (int bucket = 0; bucket < rank.buckets->size(); ++bucket) {
        const auto& layout = rank.buckets->layout().buckets()[static_cast<size_t>(bucket)];
        for (int64_t i = 0; i < layout.numel; ++i) {
          if (rank.buckets->layout().locate(layout.flat_begin + i)) continue;
          ++padding;
          const Tensor weight = rank.buckets->weight(bucket).slice(i, 1);
          wrong += dispatch(layout.dtype, [&]<typename T>() { return !(weight.data<T>()[0] == T{}); });
          wrong += rank.buckets->gradient(bucket).data<float>()[i] != 0.0f;
        }
      }
      EXPECT_GT(padding, 0);
      EXPECT_EQ(wrong, 0);
    });
  }
}

TEST_P(OptimizerTest, PiecesOfAllRanksAreEveryElementOnce) {
  for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
    std::mutex mutex;
    std::vector<std::vector<int>> seen;
    run_ranks(GetParam(), [&](Communicator& communicator) {
      OptimizedRank rank(communicator, {.sharding = sharding});
      const std::lock_guard lock(mutex);
      seen.resize(static_cast<size_t>(rank.parameters.size()));
      for (const StatePiece& piece : rank.optimizer.pieces()) {
        auto& counts = seen[static_cast<size_t>(piece.parameter->index)];
        counts.resize(static_cast<size_t>(piece.parameter->numel()));
        for (int64_t i = 0; i < piece.count; ++i) ++counts[static_cast<size_t>(piece.begin + i)];
      }
    });
    for (const auto& counts : seen) {
      EXPECT_FALSE(counts.empty());
      for (const int count : counts) ASSERT_EQ(count, 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OptimizerTest, ::testing::Values(1, 2, 3, 4, 5));
INSTANTIATE_TEST_SUITE_P(Settings, SkippedStep,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5),
                                            ::testing::Values(Sharding::kSharded, Sharding::kReplicated),
                                            ::testing::ValuesIn(skipped_states())));

TEST(Optimizer, RanksAgreeOnSixteenBitWires) {
  const auto gradient = [](int) { return toy_gradient; };
  for (const int ranks : {2, 3}) {
    for (const DType low : {DType::kBF16, DType::kF16}) {
      for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
        hash_after(ranks, {.wire = low, .sharding = sharding}, 3, gradient, kOptions, low);
        hash_after(ranks, {.wire = low, .accumulation = Accumulation::kWire, .sharding = sharding}, 3, gradient,
                   kOptions, low);
      }
    }
  }
}

TEST(Optimizer, TheHashSeesASingleBit) {
  run_ranks(1, [](Communicator& communicator) {
    OptimizedRank rank(communicator, {});
    rank.optimizer.initialize(kSeed);
    const uint64_t hash = rank.hash();
    const Tensor& weight = rank.parameters[8].weight;
    weight.raw()[weight.size_bytes() - 1] ^= std::byte{1};
    EXPECT_NE(rank.hash(), hash);
    weight.raw()[weight.size_bytes() - 1] ^= std::byte{1};
    EXPECT_EQ(rank.hash(), hash);
  });
}

TEST(Optimizer, GradientsAndOptimizerMustShareTheirMode) {
  run_ranks(1, [](Communicator& communicator) {
    OptimizedRank rank(communicator, {.sharding = Sharding::kSharded});
    ShardedOptimizer replicated(*rank.buckets, communicator, *rank.backend, *rank.stream, Sharding::kReplicated,
                                kOptions);
    rank.reduce();
    EXPECT_THROW(rank.update(replicated, kOptions, 1e-2), ContractError);
  });
}

}  // namespace
}  // namespace mantissa
