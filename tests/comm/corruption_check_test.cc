// Silent corruption of state and working weights: every flipped bit is found and attributed.
#include <gtest/gtest.h>
#include <algorithm>

#include "tests/comm/watched_rank.h"

namespace mantissa::testing {
namespace {

TEST_P(CorruptionTest, NothingIsFoundInAnyFormatWithoutAFault) {
  for (const NamedState& format : named_states()) {
    on_ranks(format.options, [&](WatchedRank& rank) {
      for (int step = 0; step < 3; ++step) {
        rank.reduce(gradient_of(step));
        EXPECT_EQ(found_text(rank.state->reducer.compare_digests(), rank.parameters), "") << format.name;
        EXPECT_EQ(found_text(rank.check->weights(), rank.parameters), "") << format.name;
        rank.update();
        EXPECT_EQ(found_text(rank.check->updates(), rank.parameters), "") << format.name;
      }
      EXPECT_EQ(found_text(rank.check->at_rest(), rank.parameters), "") << format.name;
    });
  }
}

// One flip between two updates in each tensor of each format, on the last rank, every bit of it in turn: the next
// update finds it.
TEST_P(CorruptionTest, EveryBitOfTheStateIsWatched) {
  for (const NamedState& format : named_states()) {
    on_ranks(format.options, [&](WatchedRank& rank) {
      const int victim = ranks() - 1;
      rank.step(0);
      for (int part = 0; part < StateDigests::kParts; ++part) {
        // The same piece on all ranks: the victim's first one with this part.
        const std::vector<DigestedPiece>& pieces = rank.state->optimizer.digested_pieces();
        int bits = 0;
        Tensor tensor;
        Segment segment;
        for (const DigestedPiece& piece : pieces) {
          if (rank.wires.rank() != victim || !(piece.checked() >> part & 1u)) continue;
          tensor = piece.parts()[static_cast<size_t>(part)];
          segment = piece.segment;
          bits = bits_of(tensor);
          break;
        }
        bits = all_gather_records(rank.wires, bits)[static_cast<size_t>(victim)];
        for (int bit = 0; bit < bits; ++bit) {
          if (tensor.defined()) flip_bit(tensor, bit % tensor.numel(), bit);
          rank.update();
          const std::vector<Corruption> found = rank.check->updates();
          ASSERT_EQ(found.size(), 1u) << format.name << " part " << part << " bit " << bit << ": "
                                      << found_text(found, rank.parameters);
          EXPECT_EQ(found[0].rank, victim);
          EXPECT_EQ(static_cast<int>(found[0].data), part);
          EXPECT_EQ(found[0].bit, bit);
          if (tensor.defined()) {
            EXPECT_EQ(found[0].parameter, segment.parameter);
            const int64_t unit = part >= StateDigests::kMAbsmax ? kDynamicBlock : 1;
            const int64_t element = segment.begin + bit % tensor.numel() * unit;
            EXPECT_LE(found[0].begin, element);
            EXPECT_LT(element, found[0].begin + found[0].count);
            EXPECT_LE(found[0].count, kDigestTile * unit);
          }
          rank.state->optimizer.accept_state();
        }
      }
    });
  }
}

// The same without an update: a checkpoint must not save it.
TEST_P(CorruptionTest, StateIsExaminedAtRest) {
  on_ranks(kOptions, [&](WatchedRank& rank) {
    rank.step(0);
    const int victim = ranks() - 1;
    for (int part : {StateDigests::kMaster, StateDigests::kM, StateDigests::kV}) {
      const Tensor tensor = rank.state->optimizer.digested_pieces()[0].parts()[static_cast<size_t>(part)];
      for (const int bit : {0, 12, 23, 30, 31}) {
        if (rank.wires.rank() == victim) flip_bit(tensor, tensor.numel() - 1, bit);
        const std::vector<Corruption> found = rank.check->at_rest();
        ASSERT_EQ(found.size(), 1u) << found_text(found, rank.parameters);
        EXPECT_EQ(found[0].rank, victim);
        EXPECT_EQ(static_cast<int>(found[0].data), part);
        EXPECT_EQ(found[0].bit, bit);
        if (rank.wires.rank() == victim) flip_bit(tensor, tensor.numel() - 1, bit);
      }
    }
    EXPECT_TRUE(rank.check->at_rest().empty());
  });
}

// Every parameter's copy on every rank, sampled elements, each bit in turn.
TEST_P(CorruptionTest, EveryBitOfTheWorkingWeightsIsWatched) {
  on_ranks(kOptions, [&](WatchedRank& rank) {
    rank.step(0);
    rank.reduce(gradient_of(1));
    for (int victim = 0; victim < ranks(); ++victim) {
      for (int index = 0; index < rank.parameters.size(); ++index) {
        const Tensor weight = rank.parameters[index].weight;
        const Tensor flat = weight.view({weight.numel()});
        for (int bit = 0; bit < bits_of(flat); ++bit) {
          const int64_t element = (int64_t{7919} * (bit + 1)) % flat.numel();
          if (rank.wires.rank() == victim) flip_bit(flat, element, bit);
          const std::vector<Corruption> found = rank.check->weights();
          ASSERT_EQ(found.size(), 1u) << found_text(found, rank.parameters);
          EXPECT_EQ(found[0].data, CorruptData::kWorkingWeight);
          EXPECT_EQ(found[0].rank, victim);
          EXPECT_EQ(found[0].parameter, index);
          EXPECT_TRUE(is_at(found[0], element)) << found_text(found, rank.parameters);
          EXPECT_EQ(found[0].bit, bit);
          if (rank.wires.rank() == victim) flip_bit(flat, element, bit);
        }
      }
    }
    EXPECT_TRUE(rank.check->weights().empty());
  });
}

TEST_P(CorruptionTest, WorkingWeightsAreComputedAgainFromTheMasters) {
  for (const WeightRounding rounding : {WeightRounding::kNearest, WeightRounding::kStochastic}) {
    AdamWOptions options = kOptions;
    options.weight_rounding = rounding;
    on_ranks(options, [&](WatchedRank& rank) {
      rank.step(0);
      const uint64_t before = hash_weights(rank.parameters, *rank.backend, *rank.stream);
      const Tensor flat = rank.parameters[0].weight.view({rank.parameters[0].numel()});
      if (rank.wires.rank() == 0) flip_bit(flat, 100, 14);
      EXPECT_EQ(rank.check->weights().size(), 1u);
      rank.state->optimizer.recompute_weights();
      EXPECT_TRUE(rank.check->weights().empty());
      EXPECT_EQ(hash_weights(rank.parameters, *rank.backend, *rank.stream), before);
    });
  }
}

// Weights that are their own state: an owner's flip remains when its copy is shared again, and an update finds it.
TEST_P(CorruptionTest, WeightsWithoutMastersAreStateOfTheirOwner) {
  for (const NamedState& format : named_states()) {
    if (format.options.master == MasterWeights::kF32) continue;
    on_ranks(format.options, [&](WatchedRank& rank) {
      rank.step(0);
      const DigestedPiece& piece = rank.state->optimizer.digested_pieces()[0];
      const Tensor weight = piece.parts()[static_cast<size_t>(piece.weight_part())];
      if (rank.wires.rank() == 0) flip_bit(weight, 0, 3);
      std::vector<Corruption> found = rank.check->weights();
      ASSERT_FALSE(found.empty());
      EXPECT_EQ(found[0].rank, 0);
      rank.state->optimizer.recompute_weights();
      EXPECT_FALSE(rank.check->weights().empty()) << "there is no master to compute it from";
      rank.step(1);
      found = rank.check->updates();
      ASSERT_FALSE(found.empty());
      EXPECT_EQ(found[0].rank, 0);
      EXPECT_EQ(static_cast<int>(found[0].data), piece.weight_part());
    });
  }
}

TEST_P(CorruptionTest, AcceptedStateIsTheNewReference) {
  on_ranks(kOptions, [&](WatchedRank& rank) {
    rank.step(0);
    if (rank.wires.rank() == 0) flip_bit(rank.state->optimizer.digested_pieces()[0].state.m, 0, 5);
    rank.step(1);
    EXPECT_EQ(rank.check->updates().size(), 1u);
    rank.step(2);
    EXPECT_EQ(rank.check->updates().size(), 1u) << "stays until it is accepted";
    rank.state->optimizer.accept_state();
    rank.step(3);
    EXPECT_TRUE(std::ranges::none_of(rank.check->updates(), [](const Corruption& c) { return c.update > 0; }));
  });
}

// A finding is about the update that read it, although several updates pass before anybody asks.
TEST_P(CorruptionTest, FindingsNameTheFirstUpdateThatReadThem) {
  on_ranks(kOptions, [&](WatchedRank& rank) {
    rank.step(0);
    rank.step(1);
    if (rank.wires.rank() == 0) flip_bit(rank.state->optimizer.digested_pieces()[0].state.v, 0, 1);
    for (int step = 2; step < 6; ++step) rank.step(step);
    const std::vector<Corruption> found = rank.check->updates();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].update, 3u);
  });
}

// Weights that change while they are gathered.
TEST_P(CorruptionTest, GatheredWeightsAreWatched) {
  if (ranks() == 1 || GetParam().sharding == Sharding::kReplicated) return;
  on_ranks(kOptions, [&](WatchedRank& rank) {
    if (rank.wires.rank() == 0) {
      rank.wires.on_all_gather = [&](const Tensor& rows) { flip_bit(rows, rows.numel() / ranks(), 2); };
    }
    rank.step(0);
    const std::vector<Corruption> found = rank.check->weights();
    ASSERT_EQ(found.size(), 1u) << found_text(found, rank.parameters);
    EXPECT_EQ(found[0].rank, 0);
    EXPECT_EQ(found[0].data, CorruptData::kWorkingWeight);
  });
}

// Replicas differ: three ranks outvote the wrong rank, two cannot decide.
TEST_P(CorruptionTest, ReplicasThatDivergeAreFound) {
  if (ranks() == 1 || GetParam().sharding == Sharding::kSharded) return;
  on_ranks(kOptions, [&](WatchedRank& rank) {
    rank.reduce(gradient_of(0));
    if (rank.wires.rank() == 1) flip_bit(rank.state->reducer.result(0), 0, 20);
    rank.update();
    const std::vector<Corruption> found = rank.check->updates();
    ASSERT_FALSE(found.empty());
    for (const Corruption& corruption : found) {
      EXPECT_EQ(corruption.rank, ranks() > 2 ? 1 : -1) << to_text(corruption, rank.parameters);
    }
  });
}

TEST_P(CorruptionTest, GradientsOfTwoRunsAreCompared) {
  on_ranks(kOptions, [&](WatchedRank& rank) {
    rank.reduce(gradient_of(0));
    const std::vector<Digest> first = rank.check->gradients();
    rank.reduce(gradient_of(0));
    EXPECT_TRUE(rank.check->differences(first, rank.check->gradients()).empty());
    const Parameter& parameter = rank.parameters[3];
    if (rank.wires.rank() == ranks() - 1) flip_bit(parameter.gradient.view({parameter.numel()}), 17, 31);
    const std::vector<Corruption> found = rank.check->differences(first, rank.check->gradients());
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(to_text(found[0], rank.parameters),
              fmt::format("rank {}: gradient of 'up.weight', elements [0, 256) (bit 31)", ranks() - 1));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, CorruptionTest,
                         ::testing::Values(CorruptionLayout{1, Sharding::kSharded},
                                           CorruptionLayout{2, Sharding::kSharded},
                                           CorruptionLayout{3, Sharding::kSharded},
                                           CorruptionLayout{2, Sharding::kReplicated},
                                           CorruptionLayout{3, Sharding::kReplicated}),
                         name_of_layout);

// Weights that travel as codes have no record at other ranks: the majority decides.
TEST(CorruptionOfCodes, TheMajorityNamesTheRank) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Communicator& communicator) {
      const CodedRun run;
      CodedRank rank(communicator, run);
      ShardedState state(rank.parameters,
                         {.layout = BucketLayout(rank.parameters, ranks, kToyCapacityBytes),
                          .reduction = {.wire = DType::kF32},
                          .adamw = run.adamw,
                          .coded = {.weights = rank.coded, .scales = &rank.scales},
                          .digests = Digests::kOn},
                         communicator, *rank.backend, *rank.stream);
      state.optimizer.initialize(kSeed);
      CorruptionCheck check(state);
      EXPECT_EQ(found_text(check.weights(), rank.parameters), "");
      const Tensor weight = rank.parameters.find("up.weight")->weight.view({65 * 64});
      if (communicator.rank() == 1) flip_bit(weight, 5, 6);
      const std::vector<Corruption> found = check.weights();
      ASSERT_EQ(found.size(), 1u) << found_text(found, rank.parameters);
      EXPECT_EQ(found[0].rank, ranks > 2 ? 1 : -1);
      EXPECT_EQ(rank.parameters[found[0].parameter].name, "up.weight");
      state.optimizer.recompute_weights();
      EXPECT_EQ(found_text(check.weights(), rank.parameters), "");
    });
  }
}

}  // namespace
}  // namespace mantissa::testing
