// Sums in stages: the groups, their shards, and the bits of a sum over all ranks at once.
#include "comm/exchange_groups.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <mutex>
#include <numeric>

#include "tests/comm/node_ranks.h"
#include "tests/comm/training_rank.h"
#include "tests/comm/watched_rank.h"
#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

using testing::OptimizedRank;
using testing::toy_gradient;
using testing::TrainingRank;

TEST(ExchangeStages, FollowTheExchange) {
  using Sizes = std::vector<int>;
  EXPECT_EQ(exchange_stages(Exchange::kDirect, 8, 4), Sizes({8}));
  EXPECT_EQ(exchange_stages(Exchange::kHierarchical, 8, 4), Sizes({4, 2}));
  EXPECT_EQ(exchange_stages(Exchange::kHierarchical, 8, 8), Sizes({8}));  // one node
  EXPECT_EQ(exchange_stages(Exchange::kHierarchical, 8, 1), Sizes({8}));  // a rank on each
  EXPECT_EQ(exchange_stages(Exchange::kHalving, 8, 8), Sizes({2, 2, 2}));
  EXPECT_EQ(exchange_stages(Exchange::kHalving, 12, 1), Sizes({2, 2, 3}));
  EXPECT_EQ(exchange_stages(Exchange::kHalving, 7, 1), Sizes({7}));
  EXPECT_EQ(exchange_stages(Exchange::kHalving, 1, 1), Sizes({1}));
  EXPECT_EQ(exchange_stages(Exchange::kAuto, 16, 8), Sizes({8, 2}));
  EXPECT_EQ(exchange_stages(Exchange::kAuto, 16, 16), Sizes({16}));
  EXPECT_EQ(exchange_stages(Exchange::kAuto, 7, 0), Sizes({7}));  // nodes of different sizes
}

TEST(ExchangeStages, AHierarchyNeedsNodesOfOneSize) {
  EXPECT_THROW(exchange_stages(Exchange::kHierarchical, 7, 0), ConfigError);
}

TEST(ExchangeStages, EveryShardHasOneRank) {
  for (const std::vector<int>& stages : {std::vector{6}, {2, 3}, {3, 2}, {2, 2, 2}, {4, 2, 3}}) {
    const int ranks = std::accumulate(stages.begin(), stages.end(), 1, std::multiplies<>());
    std::set<int> shards;
    for (int rank = 0; rank < ranks; ++rank) shards.insert(shard_after_stages(rank, stages));
    EXPECT_EQ(static_cast<int>(shards.size()), ranks);
    EXPECT_EQ(*shards.rbegin(), ranks - 1);
  }
  EXPECT_EQ(shard_after_stages(5, {4, 2}), 3);  // rank 1 of node 1: the second half of the second quarter
}

TEST(ExchangeGroups, ASplitCommunicatorConnectsItsMembersOnly) {
  run_ranks(6, [](Communicator& all) {
    for (int round = 0; round < 2; ++round) {
      const auto group = all.split(all.rank() % 2, 3);
      EXPECT_EQ(group->size(), 3);
      EXPECT_EQ(group->rank(), all.rank() / 2);
      EXPECT_EQ(all_gather_records(*group, all.rank()),
                (std::vector{all.rank() % 2, all.rank() % 2 + 2, all.rank() % 2 + 4}));
      const auto pair = group->split(group->rank() == 2 ? 1 : 0, group->rank() == 2 ? 1 : 2);  // groups of groups
      EXPECT_EQ(pair->size(), group->rank() == 2 ? 1 : 2);
    }
  });
}

TEST(ExchangeGroups, AGroupFailsWithTheJob) {
  EXPECT_THROW(run_ranks(4,
                         [](Communicator& all) {
                           const auto group = all.split(all.rank() / 2, 2);
                           if (all.rank() == 3) throw CommError("rank 3 is gone");
                           for (;;) group->barrier();
                         }),
               CommError);
}

// Lanes on any number of ranks: the sums, their statistics, what is sent, and memory as planned.
class LaneCounts : public testing::ReducerTest {};

TEST_P(LaneCounts, DoNotDependOnTheRanks) {
  for (const int lanes : {2, 3, 4, 6, 7, 8, 13}) {
    if (lanes < ranks() || (lanes == ranks() && !is_coded(config().wire))) continue;
    std::mutex mutex;
    std::map<std::pair<int, int64_t>, int> holders;
    run([&](Communicator& communicator) {
      TrainingRank rank(communicator, config(), DType::kBF16, testing::kToyCapacityBytes, {}, lanes);
      for (int round = 0; round < 2; ++round) rank.reduce();
      std::map<std::pair<int, int64_t>, int> mine;
      int64_t wrong = 0;
      rank.for_each_result([&](int parameter, int64_t element, float value) {
        ++mine[{parameter, element}];
        const float expected = testing::expected_sum(config(), lanes, parameter, element);
        wrong += std::bit_cast<uint32_t>(value) != std::bit_cast<uint32_t>(expected);
      });
      EXPECT_EQ(wrong, 0) << lanes << " lanes, on rank " << communicator.rank();
      const WirePlan& plan = rank.reducer->plan();
      EXPECT_EQ(rank.reducer->buffer_bytes(), plan.window_bytes + plan.result_bytes + plan.lane_bytes);
      const std::lock_guard lock(mutex);
      for (const auto& [key, count] : mine) holders[key] += count;
    });
    const int copies = config().sharding == Sharding::kSharded ? 1 : ranks();
    EXPECT_EQ(holders.size(), 19'261u);
    for (const auto& [key, count] : holders) ASSERT_EQ(count, copies);
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, LaneCounts, testing::reducer_cases());
INSTANTIATE_TEST_SUITE_P(Codes, LaneCounts, testing::coded_cases());

// Reductions and updates in stages give the bits of a single stage, for as many lanes as ranks and for more.
struct StagesCase {
  std::vector<int> stages;
  int lanes;
};

class Stages : public ::testing::TestWithParam<std::tuple<StagesCase, DType, Accumulation, bool>> {};

using Elements = std::map<std::pair<int, int64_t>, uint32_t>;

struct Reduced {
  Elements sums, weights;
  int holders = 0;
};

Reduced reduce(const std::vector<int>& stages, int lanes, const ReducerConfig& config, bool shares_memory) {
  const int ranks = std::accumulate(stages.begin(), stages.end(), 1, std::multiplies<>());
  Reduced reduced;
  std::mutex mutex;
  run_ranks(ranks, [&](Communicator& local) {
    std::optional<testing::NodeCommunicator> node;
    if (shares_memory) node.emplace(local);
    const ExchangeGroups groups(node ? *node : local, stages);
    OptimizedRank rank(groups, config, testing::kOptions, DType::kBF16, testing::kToyCapacityBytes, lanes);
    rank.optimizer.initialize(testing::kSeed);
    for (int step = 0; step < 2; ++step) {
      rank.step([step](int lane, int p, int64_t i) { return toy_gradient(lane + 100 * step, p, i); });
    }
    EXPECT_EQ(rank.reducer->buffer_bytes(),
              rank.reducer->plan().window_bytes + rank.reducer->plan().result_bytes + rank.reducer->plan().lane_bytes);
    const std::lock_guard lock(mutex);
    rank.for_each_result([&](int p, int64_t i, float value) {
      ++reduced.holders;
      reduced.sums[{p, i}] = std::bit_cast<uint32_t>(value);
    });
    for (int p = 0; p < rank.parameters.size(); ++p) {
      const Tensor& weight = rank.parameters[p].weight;
      dispatch(weight.dtype(), [&]<typename T>() {
        for (int64_t i = 0; i < weight.numel(); ++i) {
          const auto bits = std::bit_cast<uint32_t>(to_float(weight.data<T>()[i]));
          const auto [place, is_new] = reduced.weights.emplace(std::pair(p, i), bits);
          EXPECT_TRUE(is_new || place->second == bits) << "ranks have different weights";
        }
      });
    }
  });
  return reduced;
}

TEST_P(Stages, GiveTheBitsOfOneStage) {
  const auto& [given, wire, accumulation, shares_memory] = GetParam();
  const int ranks = std::accumulate(given.stages.begin(), given.stages.end(), 1, std::multiplies<>());
  for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
    const ReducerConfig config{
        .wire = wire, .accumulation = accumulation, .sharding = sharding, .wire_digests = Digests::kOn};
    const Reduced expected = reduce({1}, given.lanes, config, false);
    const Reduced found = reduce(given.stages, given.lanes, config, shares_memory);
    EXPECT_EQ(expected.holders, 19'261);
    EXPECT_EQ(found.holders, sharding == Sharding::kSharded ? 19'261 : 19'261 * ranks);
    EXPECT_TRUE(found.sums == expected.sums);
    EXPECT_TRUE(found.weights == expected.weights);
  }
}

const auto kStagesCases = ::testing::ValuesIn(std::vector<StagesCase>{{{4}, 4},
                                                                      {{2, 2}, 4},
                                                                      {{2, 2, 2}, 8},
                                                                      {{4, 2}, 8},
                                                                      {{3, 2}, 6},
                                                                      {{2, 3}, 6},
                                                                      {{2, 2}, 8},
                                                                      {{2, 2}, 7},
                                                                      {{3, 2}, 13},
                                                                      {{2, 3}, 9}});
INSTANTIATE_TEST_SUITE_P(Exchanges, Stages,
                         ::testing::Combine(kStagesCases, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                                            ::testing::Values(Accumulation::kFp32, Accumulation::kWire),
                                            ::testing::Bool()));
INSTANTIATE_TEST_SUITE_P(ExchangesOfCodes, Stages,
                         ::testing::Combine(kStagesCases, ::testing::Values(DType::kE4M3, DType::kE5M2),
                                            ::testing::Values(Accumulation::kFp32), ::testing::Bool()));

// Random words belong to lanes and elements of parameters: no exchange and no number of ranks changes a bit.
TEST(StochasticRounding, GivesTheSameBitsByEveryExchange) {
  for (const DType wire : {DType::kBF16, DType::kF16, DType::kE4M3, DType::kE5M2}) {
    ReducerConfig config{.wire = wire, .rounding = SenderRounding::kStochastic, .seed = 7};
    const Reduced expected = reduce({1}, 4, config, false);
    for (const bool shares_memory : {false, true}) {
      for (const std::vector<int>& stages : {std::vector{2}, std::vector{3}, std::vector{4}, std::vector{2, 2}}) {
        for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
          config.sharding = sharding;
          const Reduced found = reduce(stages, 4, config, shares_memory);
          EXPECT_TRUE(found.sums == expected.sums) << name(wire);
          EXPECT_TRUE(found.weights == expected.weights) << name(wire);
        }
      }
    }
    config.seed = 8;
    EXPECT_FALSE(reduce({1}, 4, config, false).sums == expected.sums) << "the seed has an effect";
    config.rounding = SenderRounding::kNearest;
    EXPECT_FALSE(reduce({1}, 4, config, false).sums == expected.sums);
  }
}

// Steps and lanes have words of their own: with the same gradient in each, the mean of many sums is that gradient.
TEST(StochasticRounding, HasNoBiasOverStepsAndLanes) {
  for (const DType wire : {DType::kBF16, DType::kF16, DType::kE4M3, DType::kE5M2}) {
    constexpr int kLanes = 4, kSteps = 100;
    run_ranks(2, [&](Communicator& communicator) {
      TrainingRank rank(communicator, {.wire = wire, .rounding = SenderRounding::kStochastic}, DType::kBF16,
                        testing::kToyCapacityBytes, {}, kLanes);
      const auto gradient = [](int, int p, int64_t i) { return toy_gradient(0, p, i); };
      std::map<std::pair<int, int64_t>, std::pair<double, double>> sums;  // of errors and their squares
      for (int step = 0; step < kSteps; ++step) {
        rank.reduce(gradient);
        rank.for_each_result([&](int p, int64_t i, float sum) {
          const double error = static_cast<double>(sum) - kLanes * static_cast<double>(gradient(0, p, i));
          sums[{p, i}].first += error;
          sums[{p, i}].second += error * error;
        });
      }
      double errors = 0.0, squares = 0.0;
      int64_t far = 0;
      for (const auto& [place, of] : sums) {
        errors += of.first, squares += of.second;
        far += std::abs(of.first) > 4.5 * std::sqrt(of.second);  // if steps had the same words, by 10
      }
      EXPECT_LT(std::abs(errors), 4.0 * std::sqrt(squares)) << name(wire);  // squares: the variance of their sum
      EXPECT_LT(far, std::ssize(sums) / 50) << name(wire);  // values next to a number are rarely rounded away from it
      if (is_coded(wire)) return;
      // Lanes with the same words would give a multiple of one rounded gradient.
      int64_t mixed = 0;
      rank.for_each_result(
          [&](int, int64_t, float sum) { mixed += testing::round_to(wire, sum / kLanes) != sum / kLanes ? 1 : 0; });
      EXPECT_GT(mixed, 0) << name(wire);
    });
  }
}

TEST(StochasticRounding, NeedsTheNumberOfTheStep) {
  run_ranks(1, [](Communicator& communicator) {
    TrainingRank rank(communicator, {.rounding = SenderRounding::kStochastic});
    EXPECT_THROW(rank.reducer->begin(), ContractError);
  });
}

// The search for a non-finite gradient, whatever the window has room for.
TEST(ExchangeGroups, ANonFiniteGradientIsFoundInStages) {
  for (const auto& [shares_memory, wire] : {std::pair{false, DType::kBF16},
                                            {true, DType::kBF16},
                                            {false, DType::kE4M3},
                                            {true, DType::kE4M3},
                                            {true, DType::kE5M2}}) {
    for (const int lanes : {10, 20}) {
      const bool in_place = shares_memory && (lanes > 10 || wire == DType::kBF16);
      run_ranks(10, [&, shares_memory = shares_memory, wire = wire](Communicator& local) {
        std::optional<testing::NodeCommunicator> node;
        if (shares_memory) node.emplace(local);
        const ExchangeGroups groups(node ? *node : local, {5, 2});
        TrainingRank rank(groups, {.wire = wire}, DType::kBF16, testing::kToyCapacityBytes, {}, lanes);
        VerdictReduction verdicts(groups, *rank.backend, *rank.stream);
        rank.reduce([&](int lane, int p, int64_t i) {
          return p == 0 && i == 6400 && lane == lanes - 1 ? std::numeric_limits<float>::infinity() : 1.0f;
        });
        EXPECT_EQ(rank.reducer->path(), in_place ? ContributionPath::kInPlace : ContributionPath::kExchanged);
        const Verdict verdict = rank.verdict_of(verdicts, 0.0f);
        EXPECT_FALSE(verdict.gradients_finite);
        const Offender offender = verdicts.find_offender(verdict, *rank.reducer, *rank.buckets);
        EXPECT_EQ(offender.parameter, 0);
        EXPECT_EQ(offender.element, 6400);
        EXPECT_EQ(offender.rank, 9);
      });
    }
  }
}

// Corrupts messages in the groups of a stage.
class CorruptedStage final : public ForwardingCommunicator {
 public:
  CorruptedStage(Communicator& inner, int stage) : ForwardingCommunicator(inner), stage_(stage) {}
  std::unique_ptr<Communicator> split(int color, int members) override {
    auto group = std::make_unique<testing::CorruptedWire>(ForwardingCommunicator::split(color, members));
    if (stage_-- == 0) group->on_all_to_all = [](const Tensor& received) { testing::flip_bit(received, 0, 3); };
    return group;
  }

 private:
  int stage_;
};

TEST(ExchangeGroups, DigestsFindWhatChangesInEveryStage) {
  for (const auto& [stage, dtype] :
       {std::pair{0, DType::kBF16}, {1, DType::kBF16}, {0, DType::kE4M3}, {1, DType::kE4M3}}) {
    run_ranks(4, [&, stage = stage, dtype = dtype](Communicator& all) {
      CorruptedStage wire(all, all.rank() == 2 ? stage : -1);
      const ExchangeGroups groups(wire, {2, 2});
      TrainingRank rank(groups, {.wire = dtype, .wire_digests = Digests::kOn});
      rank.reduce();
      const std::vector<Corruption> found = rank.reducer->compare_digests();
      ASSERT_EQ(found.size(), 1u) << "stage " << stage;
      EXPECT_EQ(found[0].receiver, 2);
      EXPECT_EQ(found[0].rank, stage == 0 ? 2 : 0);  // member 0 of its group
      EXPECT_EQ(found[0].bit, 3);
      rank.reduce();
      EXPECT_TRUE(rank.reducer->compare_digests().empty());
    });
  }
}

}  // namespace
}  // namespace mantissa
