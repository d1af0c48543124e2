// Optimizer state: saving, loading and conversion.
#include <gtest/gtest.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include "comm/local/local_communicator.h"
#include "comm/optimizer_state.h"
#include "comm/sharded_optimizer.h"
#include "core/quant/dynamic_map.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

using testing::kOptions;
using testing::NamedState;
using testing::OptimizedRank;
using testing::toy_gradient;
using testing::TrainingRank;
using testing::widened;

struct SavedMoment {
  std::vector<float> values;  // or codes with their scales
  std::vector<uint8_t> codes;
  std::vector<float> absmax;

  MomentValues view() const { return {values, codes, absmax}; }
};

struct SavedPiece {
  int parameter;
  int64_t begin;
  std::vector<float> weights, compensation;
  SavedMoment m, v;

  int64_t count() const { return static_cast<int64_t>(weights.size()); }
};

struct Layout {
  int ranks;
  Sharding sharding;
};

SavedMoment saved(const Tensor& moment, const Tensor& absmax) {
  if (moment.dtype() != DType::kU8) return {widened(moment), {}, {}};
  const auto* const codes = moment.data<uint8_t>();
  return {{}, {codes, codes + moment.numel()}, widened(absmax)};
}

std::vector<SavedPiece> save(const ShardedOptimizer& optimizer) {
  std::vector<SavedPiece> pieces;
  for (const StatePiece& piece : optimizer.pieces()) {
    pieces.push_back({piece.parameter->index, piece.begin,
                      widened(piece.master.defined() ? piece.master : piece.weight), widened(piece.compensation),
                      saved(piece.m, piece.m_absmax), saved(piece.v, piece.v_absmax)});
  }
  return pieces;
}

void load(ShardedOptimizer& optimizer, const std::vector<SavedPiece>& pieces, int64_t applied_steps) {
  optimizer.begin_load();
  for (const SavedPiece& piece : pieces) {
    if (!optimizer.needs(piece.parameter, piece.begin, piece.count())) continue;
    optimizer.load({piece.parameter, piece.begin, piece.weights, piece.compensation, piece.m.view(), piece.v.view()});
  }
  optimizer.end_load(applied_steps);
}

// Gradients whose shares are equal and exact, so that sums are the same for 1, 2 and 3 ranks.
testing::GradientFunction shares(int ranks) {
  return [ranks](int, int parameter, int64_t element) {
    return std::nearbyint(toy_gradient(0, parameter, element) * 64.0f) * 6.0f / 64.0f / static_cast<float>(ranks);
  };
}

// Trains for `steps` from `start` (or the seed, if empty). Returns all pieces and the hash of the weights.
struct TrainingRun {
  std::vector<SavedPiece> pieces;
  uint64_t hash = 0;
};
TrainingRun train(const Layout& layout, const std::vector<SavedPiece>& start, int64_t applied, int steps,
                  const AdamWOptions& options) {
  TrainingRun run;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](Communicator& communicator) {
    OptimizedRank rank(communicator, {.wire = DType::kF32, .sharding = layout.sharding}, options);
    rank.optimizer.initialize(start.empty() ? 3 : 4);
    if (!start.empty()) load(rank.optimizer, start, applied);
    for (int step = 0; step < steps; ++step) {
      rank.reduce(shares(layout.ranks));
      rank.update(rank.optimizer, options, 1e-2);
    }
    EXPECT_EQ(rank.optimizer.applied_steps(), applied + steps);
    const std::lock_guard lock(mutex);
    for (SavedPiece& piece : save(rank.optimizer)) run.pieces.push_back(std::move(piece));
    run.hash = rank.hash();
  });
  return run;
}

std::vector<NamedState> resumed_states() {
  std::vector<NamedState> states = testing::named_states();
  states.push_back(states[0]);
  states.back().name = "stochastic_weights";
  states.back().options.weight_rounding = WeightRounding::kStochastic;
  return states;
}

class ResumedState : public ::testing::TestWithParam<NamedState> {};

TEST_P(ResumedState, EveryLayoutResumesWhatAnyOtherSavedBitForBit) {
  const AdamWOptions& options = GetParam().options;
  const Layout layouts[] = {{1, Sharding::kSharded}, {2, Sharding::kSharded},    {3, Sharding::kSharded},
                            {5, Sharding::kSharded}, {2, Sharding::kReplicated}, {3, Sharding::kReplicated}};
  const uint64_t straight = train({1, Sharding::kSharded}, {}, 0, 4, options).hash;
  for (const Layout& first : {layouts[0], layouts[2], layouts[4]}) {
    const TrainingRun half = train(first, {}, 0, 2, options);
    for (const Layout& second : layouts) {
      EXPECT_EQ(train(second, half.pieces, 2, 0, options).hash, half.hash)
          << first.ranks << " ranks to " << second.ranks;
      if (second.ranks == 5) continue;  // fifths are not exact: only the loaded state is compared
      EXPECT_EQ(train(second, half.pieces, 2, 2, options).hash, straight)
          << first.ranks << " ranks to " << second.ranks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(States, ResumedState, ::testing::ValuesIn(resumed_states()), testing::name_of);

// The largest difference between the weights (plus compensations) of two layouts.
double difference(std::vector<SavedPiece> a, std::vector<SavedPiece> b) {
  for (std::vector<SavedPiece>* pieces : {&a, &b}) {
    std::sort(pieces->begin(), pieces->end(),
              [](const SavedPiece& x, const SavedPiece& y) { return x.parameter < y.parameter; });
  }
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    EXPECT_EQ(a[i].weights.size(), b[i].weights.size());
    for (size_t k = 0; k < std::min(a[i].weights.size(), b[i].weights.size()); ++k) {
      const auto weight = [k](const SavedPiece& piece) {
        return static_cast<double>(piece.weights[k]) +
               (piece.compensation.empty() ? 0.0 : static_cast<double>(piece.compensation[k]));
      };
      largest = std::max(largest, std::abs(weight(a[i]) - weight(b[i])));
    }
  }
  return largest;
}

TEST(ConvertedState, GoesFromEveryFormatToEveryOther) {
  const std::vector<NamedState> states = testing::named_states();
  for (const NamedState& from : states) {
    const TrainingRun half = train({1, Sharding::kSharded}, {}, 0, 2, from.options);
    for (const NamedState& to : states) {
      SCOPED_TRACE(from.name + " to " + to.name);
      const TrainingRun loaded = train({1, Sharding::kSharded}, half.pieces, 2, 0, to.options);
      // Weights are at most 3. Largest relative error: 2^-8 in bf16, 2^-17 with a compensation, one fp32 rounding with
      // a master.
      const double bound = to.options.master == MasterWeights::kNoneStochastic ? 0x1p-8
                           : to.options.master == MasterWeights::kKahan        ? 0x1p-17
                                                                               : 0x1p-24;
      EXPECT_LE(difference(loaded.pieces, half.pieces), 4.0 * bound);
    }
  }
}

// A parameter's whole moment, assembled from pieces.
SavedMoment whole_moment(const std::vector<SavedPiece>& pieces, int parameter, bool first) {
  SavedMoment whole;
  for (int64_t at = 0; true;) {
    const auto next = std::find_if(pieces.begin(), pieces.end(), [&](const SavedPiece& piece) {
      return piece.parameter == parameter && piece.begin == at;
    });
    if (next == pieces.end()) return whole;
    const SavedMoment& moment = first ? next->m : next->v;
    whole.values.insert(whole.values.end(), moment.values.begin(), moment.values.end());
    whole.codes.insert(whole.codes.end(), moment.codes.begin(), moment.codes.end());
    whole.absmax.insert(whole.absmax.end(), moment.absmax.begin(), moment.absmax.end());
    at += next->count();
  }
}

const AdamWOptions& options_named(const std::vector<NamedState>& states, const std::string& name) {
  return std::find_if(states.begin(), states.end(), [&](const NamedState& state) { return state.name == name; })
      ->options;
}

// Pieces of 1, 2 and 3 ranks end within blocks. Codes do not depend on the layouts that saved and loaded them.
TEST(ConvertedState, ValuesBecomeTheSameCodesHoweverTheyWereDivided) {
  const std::vector<NamedState> states = testing::named_states();
  const AdamWOptions& codes = options_named(states, "codes");
  bool divided = false, had_codes = false;
  for (const char* from : {"fp32_all", "bf16_m_v"}) {
    const TrainingRun start = train({1, Sharding::kSharded}, {}, 0, 2, options_named(states, from));
    for (const int saved_by : {1, 2, 3}) {
      // The same values, split differently over ranks.
      const TrainingRun half = train({saved_by, Sharding::kSharded}, start.pieces, 2, 0, options_named(states, from));
      for (const SavedPiece& piece : half.pieces) divided |= piece.begin % kDynamicBlock != 0;
      for (const Layout& loads : {Layout{1, Sharding::kSharded}, Layout{2, Sharding::kSharded},
                                  Layout{3, Sharding::kSharded}, Layout{2, Sharding::kReplicated}}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks to {}", from, saved_by, loads.ranks));
        const TrainingRun loaded = train(loads, half.pieces, 2, 0, codes);
        for (int parameter = 0; parameter < 9; ++parameter) {
          for (const bool first : {true, false}) {
            const DynamicMap map = first ? DynamicMap::kSigned : DynamicMap::kUnsigned;
            const SavedMoment found = whole_moment(loaded.pieces, parameter, first);
            const std::vector<float> values = whole_moment(start.pieces, parameter, first).values;
            if (found.codes.empty()) {
              EXPECT_EQ(found.values, values);
              continue;
            }
            had_codes = true;
            std::vector<uint8_t> expected(values.size());
            std::vector<float> absmax((values.size() + kDynamicBlock - 1) / kDynamicBlock);
            encode_blocks(map, values, expected, absmax);
            EXPECT_EQ(found.codes, expected) << parameter;
            EXPECT_EQ(found.absmax, absmax) << parameter;
          }
        }
      }
    }
  }
  EXPECT_TRUE(divided && had_codes);
}

// The codes of an 8-bit run, decoded to values.
TEST(ConvertedState, CodesBecomeTheirValues) {
  const std::vector<NamedState> states = testing::named_states();
  const TrainingRun half = train({2, Sharding::kSharded}, {}, 0, 2, states[4].options);
  ASSERT_EQ(states[4].name, "codes");
  const TrainingRun loaded = train({1, Sharding::kSharded}, half.pieces, 2, 0, states[0].options);
  const auto values_at = [](const std::vector<SavedPiece>& pieces, int parameter, bool first) {
    SavedMoment moment = whole_moment(pieces, parameter, first);
    const DynamicMap map = first ? DynamicMap::kSigned : DynamicMap::kUnsigned;
    for (size_t i = 0; i < moment.codes.size(); ++i) {
      moment.values.push_back(dynamic_value(map, moment.codes[i]) * moment.absmax[i / kDynamicBlock]);
    }
    return moment.values;
  };
  bool had_codes = false;
  for (const SavedPiece& piece : half.pieces) had_codes |= !piece.m.codes.empty() && !piece.v.codes.empty();
  EXPECT_TRUE(had_codes);
  for (int parameter = 0; parameter < 9; ++parameter) {
    for (const bool first : {true, false}) {
      EXPECT_EQ(values_at(loaded.pieces, parameter, first), values_at(half.pieces, parameter, first)) << parameter;
    }
  }
}

TEST(OptimizerState, EmptyMomentsAreZeros) {
  run_ranks(2, [](Communicator& communicator) {
    TrainingRank rank(communicator, {});
    ShardedOptimizer optimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, Sharding::kSharded, kOptions);
    optimizer.initialize(3);
    rank.reduce();
    rank.update(optimizer, kOptions, 1e-2);
    optimizer.begin_load();
    for (int index = 0; index < rank.parameters.size(); ++index) {
      const std::vector<float> ones(static_cast<size_t>(rank.parameters[index].numel()), 1.0f);
      optimizer.load({.parameter = index, .begin = 0, .weights = ones});
    }
    const uint64_t version = rank.parameters[0].version;
    optimizer.end_load(0);
    EXPECT_GT(rank.parameters[0].version, version);
    for (const SavedPiece& piece : save(optimizer)) {
      EXPECT_EQ(piece.weights, std::vector<float>(piece.weights.size(), 1.0f));
      EXPECT_EQ(piece.m.values, std::vector<float>(piece.weights.size(), 0.0f));
      EXPECT_EQ(piece.v.values, std::vector<float>(piece.weights.size(), 0.0f));
    }
    for (const float value : widened(rank.parameters[0].weight)) ASSERT_EQ(value, 1.0f);
  });
}

class LoadFailure : public ::testing::TestWithParam<Sharding> {};

// Loads every parameter; `change` may corrupt parameter 0 on the last of three ranks.
void expect_refusal(Sharding sharding, const std::function<void(ShardedOptimizer&, const std::vector<float>&)>& spoil) {
  std::atomic<int> refused = 0;
  run_ranks(3, [&](Communicator& communicator) {
    TrainingRank rank(communicator, {.sharding = sharding});
    ShardedOptimizer optimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, sharding, kOptions);
    optimizer.initialize(3);
    optimizer.begin_load();
    for (int index = 0; index < rank.parameters.size(); ++index) {
      const std::vector<float> ones(static_cast<size_t>(rank.parameters[index].numel()), 1.0f);
      if (index == 0 && communicator.rank() == 2) {
        spoil(optimizer, ones);
      } else {
        optimizer.load({.parameter = index, .begin = 0, .weights = ones, .m = {.values = ones}, .v = {.values = ones}});
      }
    }
    try {
      optimizer.end_load(1);
    } catch (const CheckpointError& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find("'embedding.weight': rank 2 needs"), std::string::npos) << error.what();
    }
  });
  EXPECT_EQ(refused, 3) << "every rank must learn of it";
}

TEST_P(LoadFailure, MissingElementsAreRefusedOnAllRanks) {
  expect_refusal(GetParam(), [](ShardedOptimizer& optimizer, const std::vector<float>& ones) {
    const std::span<const float> most(ones.data(), ones.size() - 1);
    optimizer.load({.parameter = 0, .begin = 0, .weights = most, .m = {.values = most}, .v = {.values = most}});
  });
}

TEST_P(LoadFailure, ElementsThatComeTwiceAreRefusedOnAllRanks) {
  expect_refusal(GetParam(), [](ShardedOptimizer& optimizer, const std::vector<float>& ones) {
    for (int twice = 0; twice < 2; ++twice) {
      optimizer.load({.parameter = 0, .begin = 0, .weights = ones, .m = {.values = ones}, .v = {.values = ones}});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, LoadFailure, ::testing::Values(Sharding::kSharded, Sharding::kReplicated));

TEST(OptimizerState, MisuseIsRefused) {
  run_ranks(1, [](Communicator& communicator) {
    TrainingRank rank(communicator, {});
    ShardedOptimizer optimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, Sharding::kSharded, kOptions);
    const std::vector<float> two(2, 1.0f), three(3, 1.0f);
    EXPECT_THROW(optimizer.load({.parameter = 0, .begin = 0, .weights = two}), ContractError);
    EXPECT_THROW(optimizer.end_load(0), ContractError);
    optimizer.begin_load();
    EXPECT_THROW(optimizer.load({.parameter = 99, .begin = 0, .weights = two}), ContractError);
    EXPECT_THROW(optimizer.load({.parameter = 0, .begin = 0, .weights = two, .m = {.values = three}}), ContractError);
    EXPECT_THROW(optimizer.load({.parameter = 5, .begin = 0, .weights = two}), CheckpointError);
    const std::vector<uint8_t> codes(300);
    const std::vector<float> ones(300, 1.0f);
    const MomentValues halves{{}, codes, two};
    EXPECT_THROW(optimizer.load({.parameter = 0, .begin = 64, .weights = ones, .m = halves}), CheckpointError);
    EXPECT_THROW(optimizer.load({.parameter = 0, .begin = 0, .weights = ones, .m = {{}, codes, three}}),
                 CheckpointError);
    EXPECT_THROW(optimizer.load({.parameter = 0, .begin = 0, .weights = ones, .compensation = two}), ContractError);
    EXPECT_THROW(optimizer.load({.parameter = 0, .begin = -1, .weights = two}), CheckpointError);
  });
}

}  // namespace
}  // namespace mantissa
