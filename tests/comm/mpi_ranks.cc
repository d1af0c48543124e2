// Run by mpirun: the communicator's contract over MPI. Needs the number of ranks that it is to find, so that a program
// that silently starts alone fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "comm/local/rank_threads.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/registry.h"
#include "comm/sharded_optimizer.h"
#include "comm/verdict_reduction.h"
#include "comm/weight_hash.h"
#include "tests/comm/communicator_contract.h"
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

// Tensors in memory that the ranks of a node share.
class SharedPlace final : public testing::TensorPlace {
 public:
  explicit SharedPlace(Communicator& communicator) : communicator_(communicator) {}

  std::unique_ptr<Stream> create_stream() override { return host_.create_stream(); }
  Tensor make(DType dtype, Shape shape) override {
    const auto bytes = static_cast<size_t>(shape.numel() * size_bytes(dtype));
    const auto storage = communicator_.allocate_shared(bytes, "a test");
    EXPECT_EQ(storage != nullptr, bytes > 0 && communicator_.local_size() > 1);
    return storage ? Tensor(storage, dtype, shape) : host_.make(dtype, shape);
  }
  void write(const std::vector<std::byte>& bytes, const Tensor& tensor, Stream& stream) override {
    host_.write(bytes, tensor, stream);
  }
  std::vector<std::byte> read(const Tensor& tensor, Stream& stream) override { return host_.read(tensor, stream); }
  void copy(const Tensor& source, const Tensor& destination, Stream& stream) override {
    host_.copy(source, destination, stream);
  }

 private:
  Communicator& communicator_;
  testing::HostPlace host_;
};

TEST(MpiCommunicator, KeepsTheContractInSharedMemory) {
  const auto communicator = create_communicator("mpi");
  SharedPlace place(*communicator);
  testing::check_communicator_contract(*communicator, place);
}

// Both ways at once: messages between nodes and shared memory inside of them.
TEST(MpiCommunicator, KeepsTheContractOnSeveralNodes) {
  const auto communicator = create_mpi_communicator({.piece_bytes = 100'003, .ranks_per_node = 2});
  EXPECT_EQ(communicator->local_rank(), communicator->rank() % 2);
  EXPECT_EQ(communicator->local_size(), std::min(2, expected_ranks - communicator->rank() / 2 * 2));
  SharedPlace place(*communicator);
  testing::check_communicator_contract(*communicator, place);
  testing::check_communicator_contract(*communicator);
}

// The readers of rank 0's buffer start first and find nothing in it, then do not look until they are told. Few bytes:
// messages would have left at once. `other` orders the ranks without moving the exchanges of `communicator`.
TEST(MpiCommunicator, ABufferInSharedMemoryIsNotFreeBeforeAllHaveReadIt) {
  const auto communicator = create_communicator("mpi"), other = create_communicator("mpi");
  if (expected_ranks == 1) return;  // nobody reads
  SharedPlace place(*communicator);
  const auto stream = place.create_stream();
  const Tensor send = place.make(DType::kU8, Shape{100}), all = place.make(DType::kU8, Shape{expected_ranks, 100});
  std::memset(send.raw(), 1 + communicator->rank(), 100);
  std::unique_ptr<Work> work;
  if (communicator->rank() > 0) work = communicator->all_gather(send, all, *stream);
  other->barrier();
  if (communicator->rank() == 0) work = communicator->all_gather(send, all, *stream);
  for (int look = 0; communicator->rank() == 0 && look < 1000; ++look) ASSERT_FALSE(work->test());
  other->barrier();
  work->wait();
  std::memset(send.raw(), 255, 100);
  other->barrier();
  for (int source = 0; source < expected_ranks; ++source) EXPECT_EQ(all.data<uint8_t>()[source * 100], 1 + source);
}

// Across nodes nothing can be read in place, and a meeting is one all the same.
TEST(MpiCommunicator, RanksOfOneNodeReadEachOthersMemoryBetweenMeetings) {
  for (const int ranks_per_node : {0, 2}) {
    const auto communicator = create_mpi_communicator({.ranks_per_node = ranks_per_node});
    SharedPlace place(*communicator);
    const auto stream = place.create_stream();
    const Tensor mine = place.make(DType::kF32, Shape{1000});
    const SharedRows all = communicator->rows_of_all(mine);
    const bool one_node = communicator->local_size() == expected_ranks && expected_ranks > 1;
    ASSERT_EQ(all.rows.defined(), one_node);
    for (int round = 0; round < 100; ++round) {
      std::fill_n(mine.data<float>(), 1000, static_cast<float>(10 * round + communicator->rank()));
      communicator->meet(*stream)->wait();
      for (int source = 0; one_node && source < expected_ranks; ++source) {
        const float* const row = all.rows.data<float>() + source * all.stride;
        EXPECT_EQ(std::count(row, row + 1000, static_cast<float>(10 * round + source)), 1000);
      }
      communicator->meet(*stream)->wait();
    }
  }
}

TEST(MpiCommunicator, RefusesPiecesThatAnMpiCountCannotExpress) {
  EXPECT_THROW(create_mpi_communicator({.piece_bytes = size_t{1} << 31}), ContractError);
  EXPECT_THROW(create_mpi_communicator({.piece_bytes = 0}), ContractError);
  EXPECT_THROW(create_mpi_communicator({.ranks_per_node = -1}), ContractError);
}

// Some steps of toy training; the hash of the weights and the sum of squares of the last gradient.
std::pair<uint64_t, double> train(Communicator& communicator, const ReducerConfig& config) {
  testing::TrainingRank rank(communicator, config);
  const bool one_node = communicator.shares_node_memory() && communicator.local_size() == communicator.size();
  const bool in_place = one_node && communicator.size() > 1;
  EXPECT_EQ(rank.reducer->path(), in_place ? ContributionPath::kInPlace : ContributionPath::kExchanged);
  EXPECT_EQ(rank.buckets->weights_in_common(), in_place && config.sharding == Sharding::kSharded);
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
  const auto on_nodes = create_mpi_communicator({.ranks_per_node = 2});
  for (const DType wire : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      const ReducerConfig config{.wire = wire, .sharding = sharding};
      std::pair<uint64_t, double> expected;
      run_ranks(communicator->size(), [&](Communicator& local) {
        const auto outcome = train(local, config);
        if (local.rank() == 0) expected = outcome;
      });
      EXPECT_EQ(train(*communicator, config), expected);
      EXPECT_EQ(train(*on_nodes, config), expected);
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
