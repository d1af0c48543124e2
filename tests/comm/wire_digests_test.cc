// Gradients that change on their way between ranks: every flipped bit is found and attributed.
#include <gtest/gtest.h>

#include "tests/comm/node_ranks.h"
#include "tests/comm/watched_rank.h"

namespace mantissa::testing {
namespace {

class WireCorruptionTest : public CorruptionTest {};

TEST_P(WireCorruptionTest, EveryBitOfGradientsOnTheWireIsWatched) {
  for (const DType wire : {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3, DType::kE5M2}) {
    on_ranks(
        kOptions,
        [&](WatchedRank& rank) {
          const BucketLayout& layout = rank.state->buckets.layout();
          const int me = rank.wires.rank(), sender = 0, receiver = ranks() - 1;
          for (int bit = 0; bit < static_cast<int>(8 * size_bytes(wire)); ++bit) {
            if (me == receiver) {
              rank.wires.on_all_to_all = [&](const Tensor& rows) {
                flip_bit(rows, sender * rows.dim(1) + bit % 3, bit);
              };
            }
            rank.reduce(gradient_of(bit));
            const std::vector<Corruption> found = rank.state->reducer.compare_digests();
            ASSERT_EQ(found.size(), 1u) << found_text(found, rank.parameters);
            EXPECT_EQ(found[0].data, CorruptData::kSentGradient);
            EXPECT_EQ(found[0].rank, sender);
            EXPECT_EQ(found[0].receiver, receiver);
            const Segment first = layout.shard_segments(0, receiver).at(0);  // of the first bucket that travels
            EXPECT_EQ(found[0].parameter, first.parameter);
            EXPECT_TRUE(is_at(found[0], first.begin + bit % 3)) << found_text(found, rank.parameters);
            EXPECT_EQ(found[0].bit, bit);
            rank.reduce(gradient_of(bit));
            EXPECT_TRUE(rank.state->reducer.compare_digests().empty()) << "the next reduction is clean";
          }
        },
        wire);
  }
}

TEST_P(WireCorruptionTest, EveryBitOfTheScalesOfCodesIsWatched) {
  on_ranks(
      kOptions,
      [&](WatchedRank& rank) {
        const BucketLayout& layout = rank.state->buckets.layout();
        const int receiver = ranks() - 1;
        const Segment first = layout.shard_segments(0, receiver).at(0);
        for (int bit = 0; bit < 8; ++bit) {
          const int64_t block = bit % divide_up(first.count, kCodeBlock);
          if (rank.wires.rank() == receiver) {
            rank.wires.on_all_to_all = [&](const Tensor& rows) {
              flip_bit(rows, layout.bucket(0).shard_numel + block, bit);  // of rank 0
            };
          }
          rank.reduce(gradient_of(bit));
          const std::vector<Corruption> found = rank.state->reducer.compare_digests();
          ASSERT_EQ(found.size(), 1u) << found_text(found, rank.parameters);
          EXPECT_EQ(found[0].rank, 0);
          EXPECT_EQ(found[0].parameter, first.parameter);
          EXPECT_EQ(found[0].bit, bit);
          EXPECT_LE(found[0].begin, first.begin + block * kCodeBlock);
          EXPECT_GE(found[0].begin + found[0].count, std::min((block + 1) * kCodeBlock, first.count) + first.begin);
        }
      },
      DType::kE4M3);
}

TEST_P(WireCorruptionTest, SumsForReplicasAreWatched) {
  if (GetParam().sharding == Sharding::kSharded) return;
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    on_ranks(
        kOptions,
        [&](WatchedRank& rank) {
          if (rank.wires.rank() == 0) {
            rank.wires.on_all_gather = [&](const Tensor& rows) { flip_bit(rows, rows.numel() / ranks(), 9); };
          }
          rank.reduce(gradient_of(0));
          const std::vector<Corruption> found = rank.state->reducer.compare_digests();
          ASSERT_EQ(found.size(), 1u) << found_text(found, rank.parameters);
          EXPECT_EQ(found[0].data, CorruptData::kSummedGradient);
          EXPECT_EQ(found[0].rank, 1);
          EXPECT_EQ(found[0].receiver, 0);
          EXPECT_EQ(found[0].bit, 9);
        },
        wire);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, WireCorruptionTest,
                         ::testing::Values(CorruptionLayout{2, Sharding::kSharded},
                                           CorruptionLayout{3, Sharding::kSharded},
                                           CorruptionLayout{2, Sharding::kReplicated},
                                           CorruptionLayout{3, Sharding::kReplicated}),
                         name_of_layout);

// Ranks read each other's gradients in place and share a copy of the weights.
TEST(CorruptionOfSharedMemory, IsFoundAndAttributed) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Communicator& inner) {
      NodeCommunicator node(inner);
      WatchedRank rank(node, kOptions, Sharding::kSharded, DType::kBF16);
      ASSERT_TRUE(rank.state->buckets.weights_in_common());
      const int me = inner.rank(), sender = ranks - 1;
      const Segment first = rank.state->buckets.layout().shard_segments(0, 0).at(0);
      for (int bit = 0; bit < 32; ++bit) {
        // The sender has taken its digests, and the others have not read yet.
        if (me == sender) {
          rank.wires.before_barrier = [&] { flip_bit(rank.state->buckets.gradient(0), first.offset + 1, bit); };
        }
        rank.reduce(gradient_of(bit));
        const std::vector<Corruption> found = rank.state->reducer.compare_digests();
        ASSERT_EQ(found.size(), 1u) << found_text(found, rank.parameters);
        EXPECT_EQ(found[0].rank, sender);
        EXPECT_EQ(found[0].receiver, 0);
        EXPECT_EQ(found[0].parameter, first.parameter);
        EXPECT_TRUE(is_at(found[0], first.begin + 1)) << found_text(found, rank.parameters);
        EXPECT_EQ(found[0].bit, bit);
      }
      rank.step(0);
      rank.reduce(gradient_of(1));
      EXPECT_EQ(found_text(rank.check->weights(), rank.parameters), "");
      inner.barrier();
      const Tensor weight = rank.parameters[0].weight.view({rank.parameters[0].numel()});
      if (me == 0) flip_bit(weight, 33, 15);
      inner.barrier();
      const std::vector<Corruption> found = rank.check->weights();
      ASSERT_EQ(found.size(), 1u) << found_text(found, rank.parameters);
      EXPECT_EQ(found[0].parameter, 0);
      EXPECT_TRUE(is_at(found[0], 33)) << found_text(found, rank.parameters);
      EXPECT_EQ(found[0].bit, 15);
      rank.state->optimizer.recompute_weights();
      EXPECT_EQ(found_text(rank.check->at_rest(), rank.parameters), "");
    });
  }
}

}  // namespace
}  // namespace mantissa::testing
