// Run by mpirun: the communicator's contract over MPI. Needs the number of ranks that it is to find, so that a program
// that silently starts alone fails.
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/mpi/mpi_communicator.h"
#include "comm/registry.h"
#include "comm/sharded_optimizer.h"
#include "comm/verdict_reduction.h"
#include "comm/weight_hash.h"
#include "tests/comm/communicator_contract.h"
#include "tests/comm/rank_threads.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

int expected_ranks = 0;

TEST(MpiCommunicator, KeepsTheContract) {
  const auto communicator = create_communicator("mpi");
  EXPECT_EQ(communicator->name(), "mpi");
  ASSERT_EQ(communicator->size(), expected_ranks);
  EXPECT_EQ(communicator->local_size(), expected_ranks);  // the test runs on one machine
  EXPECT_EQ(communicator->local_rank(), communicator->rank());
  testing::check_communicator_contract(*communicator);
}

// What happens above 2^31 bytes, with small numbers: messages of several pieces, the last one shorter.
TEST(MpiCommunicator, KeepsTheContractWithMessagesInPieces) {
  const auto communicator = create_mpi_communicator({.piece_bytes = 100'003});
  testing::check_communicator_contract(*communicator);
}

TEST(MpiCommunicator, RefusesPiecesThatAnMpiCountCannotExpress) {
  EXPECT_THROW(create_mpi_communicator({.piece_bytes = size_t{1} << 31}), ContractError);
  EXPECT_THROW(create_mpi_communicator({.piece_bytes = 0}), ContractError);
}

// Some steps of toy training; the hash of the weights and the sum of squares of the last gradient.
std::pair<uint64_t, double> train(Communicator& communicator, const ReducerConfig& config) {
  testing::TrainingRank rank(communicator, config);
  VerdictReduction verdicts(communicator, *rank.backend, *rank.stream);
  ShardedOptimizer optimizer(*rank.buckets, communicator, *rank.backend, *rank.stream, config.sharding, {});
  optimizer.initialize(5);
  double sum_squares = 0.0;
  for (int step = 0; step < 3; ++step) {
    rank.reduce([step](int r, int p, int64_t e) { return testing::toy_gradient(r + 10 * step, p, e); });
    sum_squares = rank.verdict_of(verdicts, 0.0f).sum_squares;
    rank.update(optimizer, {}, 1e-2);
  }
  return {hash_weights(rank.parameters, *rank.backend, *rank.stream), sum_squares};
}

TEST(MpiCommunicator, TrainsBitForBitLikeRanksAsThreads) {
  const auto communicator = create_communicator("mpi");
  for (const DType wire : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      const ReducerConfig config{.wire = wire, .sharding = sharding};
      std::pair<uint64_t, double> expected;
      testing::run_ranks(communicator->size(), [&](Communicator& local) {
        const auto outcome = train(local, config);
        if (local.rank() == 0) expected = outcome;
      });
      EXPECT_EQ(train(*communicator, config), expected);
    }
  }
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) return EXIT_FAILURE;
  mantissa::expected_ranks = std::atoi(argv[1]);
  const auto environment =
      mantissa::create_communicator("mpi");  // MPI can be started only once: keeps it for all cases
  return RUN_ALL_TESTS();
}
