// Optimizer state that one layout saves and another one loads.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>

#include "comm/sharded_optimizer.h"
#include "comm/weight_hash.h"
#include "tests/comm/rank_threads.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

using testing::run_ranks;
using testing::toy_gradient;
using testing::TrainingRank;

const AdamWOptions kOptions{.beta2 = 0.95f, .weight_decay = 0.1f};

struct SavedPiece {
  int parameter;
  int64_t begin;
  std::vector<float> master, m, v;
};

struct Layout {
  int ranks;
  Sharding sharding;
};

std::vector<float> widened(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  dispatch(tensor.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(tensor.data<T>()[i]);
  });
  return values;
}

std::vector<SavedPiece> save(const ShardedOptimizer& optimizer) {
  std::vector<SavedPiece> saved;
  for (const StatePiece& piece : optimizer.pieces()) {
    saved.push_back({piece.parameter->index, piece.begin, widened(piece.master), widened(piece.m), widened(piece.v)});
  }
  return saved;
}

void load(ShardedOptimizer& optimizer, const std::vector<SavedPiece>& pieces, int64_t applied_steps) {
  optimizer.begin_load();
  for (const SavedPiece& piece : pieces) {
    if (!optimizer.needs(piece.parameter, piece.begin, static_cast<int64_t>(piece.master.size()))) continue;
    optimizer.load({piece.parameter, piece.begin, piece.master, piece.m, piece.v});
  }
  optimizer.end_load(applied_steps);
}

// Gradients of which every rank has the same exact share, so that the sums are the same for 1, 2 and 3 ranks.
testing::GradientFunction shares(int ranks) {
  return [ranks](int, int parameter, int64_t element) {
    return std::nearbyint(toy_gradient(0, parameter, element) * 64.0f) * 6.0f / 64.0f / static_cast<float>(ranks);
  };
}

// Trains from `start` (or from the seed, if empty) for `steps` and returns all pieces and the hash of the weights.
struct TrainingRun {
  std::vector<SavedPiece> pieces;
  uint64_t hash = 0;
};
TrainingRun train(const Layout& layout, const std::vector<SavedPiece>& start, int64_t applied, int steps,
                  DType first_moment, WeightRounding rounding) {
  TrainingRun run;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](Communicator& communicator) {
    AdamWOptions options = kOptions;
    options.first_moment = first_moment;
    options.weight_rounding = rounding;
    TrainingRank rank(communicator, {.wire = DType::kF32, .sharding = layout.sharding});
    ShardedOptimizer optimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, layout.sharding, options);
    optimizer.initialize(start.empty() ? 3 : 4);
    if (!start.empty()) load(optimizer, start, applied);
    for (int step = 0; step < steps; ++step) {
      rank.reduce(shares(layout.ranks));
      rank.update(optimizer, options, 1e-2);
    }
    EXPECT_EQ(optimizer.applied_steps(), applied + steps);
    const std::lock_guard lock(mutex);
    for (SavedPiece& piece : save(optimizer)) run.pieces.push_back(std::move(piece));
    run.hash = hash_weights(rank.parameters, *rank.backend, *rank.stream);
  });
  return run;
}

class ResumedState : public ::testing::TestWithParam<std::tuple<DType, WeightRounding>> {};

TEST_P(ResumedState, EveryLayoutResumesWhatAnyOtherSavedBitForBit) {
  const auto [first_moment, rounding] = GetParam();
  const Layout layouts[] = {{1, Sharding::kSharded}, {2, Sharding::kSharded},    {3, Sharding::kSharded},
                            {5, Sharding::kSharded}, {2, Sharding::kReplicated}, {3, Sharding::kReplicated}};
  const uint64_t straight = train({1, Sharding::kSharded}, {}, 0, 4, first_moment, rounding).hash;
  for (const Layout& first : {layouts[0], layouts[2], layouts[4]}) {
    const TrainingRun half = train(first, {}, 0, 2, first_moment, rounding);
    for (const Layout& second : layouts) {
      EXPECT_EQ(train(second, half.pieces, 2, 0, first_moment, rounding).hash, half.hash)
          << first.ranks << " ranks to " << second.ranks;
      if (second.ranks == 5) continue;  // fifths are not exact: only what is loaded is compared
      EXPECT_EQ(train(second, half.pieces, 2, 2, first_moment, rounding).hash, straight)
          << first.ranks << " ranks to " << second.ranks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ResumedState,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(WeightRounding::kNearest, WeightRounding::kStochastic)));

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
      optimizer.load({.parameter = index, .begin = 0, .master = ones, .m = {}, .v = {}});
    }
    const uint64_t version = rank.parameters[0].version;
    optimizer.end_load(0);
    EXPECT_GT(rank.parameters[0].version, version);
    for (const SavedPiece& piece : save(optimizer)) {
      EXPECT_EQ(piece.master, std::vector<float>(piece.master.size(), 1.0f));
      EXPECT_EQ(piece.m, std::vector<float>(piece.master.size(), 0.0f));
      EXPECT_EQ(piece.v, std::vector<float>(piece.master.size(), 0.0f));
    }
    for (const float value : widened(rank.parameters[0].weight)) ASSERT_EQ(value, 1.0f);
  });
}

class LoadFailure : public ::testing::TestWithParam<Sharding> {};

// Loads every parameter, except that `change` may spoil those of parameter 0 on the last of three ranks.
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
        optimizer.load({.parameter = index, .begin = 0, .master = ones, .m = ones, .v = ones});
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
    optimizer.load({.parameter = 0, .begin = 0, .master = most, .m = most, .v = most});
  });
}

TEST_P(LoadFailure, ElementsThatComeTwiceAreRefusedOnAllRanks) {
  expect_refusal(GetParam(), [](ShardedOptimizer& optimizer, const std::vector<float>& ones) {
    for (int twice = 0; twice < 2; ++twice) {
      optimizer.load({.parameter = 0, .begin = 0, .master = ones, .m = ones, .v = ones});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, LoadFailure, ::testing::Values(Sharding::kSharded, Sharding::kReplicated));

TEST(OptimizerState, MisuseIsRefused) {
  run_ranks(1, [](Communicator& communicator) {
    TrainingRank rank(communicator, {});
    ShardedOptimizer optimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, Sharding::kSharded, kOptions);
    const std::vector<float> two(2, 1.0f), three(3, 1.0f);
    EXPECT_THROW(optimizer.load({.parameter = 0, .begin = 0, .master = two, .m = {}, .v = {}}), ContractError);
    EXPECT_THROW(optimizer.end_load(0), ContractError);
    optimizer.begin_load();
    EXPECT_THROW(optimizer.load({.parameter = 99, .begin = 0, .master = two, .m = {}, .v = {}}), ContractError);
    EXPECT_THROW(optimizer.load({.parameter = 0, .begin = 0, .master = two, .m = three, .v = {}}), ContractError);
    EXPECT_THROW(optimizer.load({.parameter = 5, .begin = 0, .master = two, .m = {}, .v = {}}), CheckpointError);
    EXPECT_THROW(optimizer.load({.parameter = 0, .begin = -1, .master = two, .m = {}, .v = {}}), CheckpointError);
  });
}

}  // namespace
}  // namespace mantissa
