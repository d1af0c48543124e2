// Run by mpirun. `mpi_ranks N`: the communicator's contract over MPI, for host tensors and, through host memory, for
// tensors of the emulated GPU. N is the number of ranks: a program that silently starts alone fails. `mpi_ranks die`:
// ranks sum gradients through their node's shared memory until rank 1 is killed (rank_death_test); `mpi_ranks
// sum`: no rank is.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "comm/communicator.h"
#include "comm/local/local_communicator.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/staged/staged_communicator.h"
#include "core/cuda/emulation/faults.h"
#include "tests/comm/communicator_contract.h"
#include "tests/comm/emulated_gpu.h"
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

// MPI's own collectives, which `mantissa bench comm` measures. Rank r sends the value 10 i + r as element i.
TEST(MpiCommunicator, RunsTheLibrarysOwnCollectives) {
  const auto communicator = create_communicator("mpi");
  const int ranks = communicator->size(), mine = communicator->rank(), numbers = ranks * (ranks - 1) / 2;
  testing::HostPlace place;
  // expected(i): the value of element i.
  const auto check = [&](Collective collective, int64_t sent, int64_t received, const auto& expected) {
    const Tensor send = place.make(DType::kF32, Shape{sent}), receive = place.make(DType::kF32, Shape{received});
    for (int i = 0; i < sent; ++i) send.data<float>()[i] = static_cast<float>(10 * i + mine);
    ASSERT_TRUE(communicator->run_library(collective, send, receive));
    for (int i = 0; i < received; ++i) EXPECT_EQ(receive.data<float>()[i], static_cast<float>(expected(i)));
  };
  check(Collective::kAllToAll, 2 * ranks, 2 * ranks, [&](int i) { return 10 * (2 * mine + i % 2) + i / 2; });
  check(Collective::kAllGather, 2, 2 * ranks, [&](int i) { return 10 * (i % 2) + i / 2; });
  check(Collective::kReduceScatter, 2 * ranks, 2, [&](int i) { return 10 * ranks * (2 * mine + i) + numbers; });
  check(Collective::kAllReduce, 3, 3, [&](int i) { return 10 * ranks * i + numbers; });
}

// Messages above 2^31 bytes, tested with small numbers: several pieces, the last one shorter.
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
    const auto storage = communicator_.node_memory()->allocate(bytes, "a test");
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

// Messages between nodes and shared memory within them at the same time.
TEST(MpiCommunicator, KeepsTheContractOnSeveralNodes) {
  const auto communicator = create_mpi_communicator({.piece_bytes = 100'003, .ranks_per_node = 2});
  EXPECT_EQ(communicator->local_rank(), communicator->rank() % 2);
  EXPECT_EQ(communicator->local_size(), std::min(2, expected_ranks - communicator->rank() / 2 * 2));
  SharedPlace place(*communicator);
  testing::check_communicator_contract(*communicator, place);
  testing::check_communicator_contract(*communicator);
}

// The readers of rank 0's buffer start first, find nothing, and do not test again before the second barrier. Messages
// this small would leave at once. `other` orders the ranks without advancing exchanges of `communicator`.
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

// Memory cannot be read in place across nodes, but the barrier works.
TEST(MpiCommunicator, RanksOfOneNodeReadEachOthersMemoryBetweenMeetings) {
  for (const int ranks_per_node : {0, 2}) {
    const auto communicator = create_mpi_communicator({.ranks_per_node = ranks_per_node});
    SharedPlace place(*communicator);
    const auto stream = place.create_stream();
    const Tensor mine = place.make(DType::kF32, Shape{1000});
    const SharedRows all = communicator->node_memory()->rows_of_all(mine);
    const bool one_node = communicator->local_size() == expected_ranks && expected_ranks > 1;
    ASSERT_EQ(all.rows.defined(), one_node);
    for (int round = 0; round < 100; ++round) {
      std::fill_n(mine.data<float>(), 1000, static_cast<float>(10 * round + communicator->rank()));
      communicator->node_barrier(*stream)->wait();
      for (int source = 0; one_node && source < expected_ranks; ++source) {
        const float* const row = all.rows.data<float>() + source * all.stride;
        EXPECT_EQ(std::count(row, row + 1000, static_cast<float>(10 * round + source)), 1000);
      }
      communicator->node_barrier(*stream)->wait();
    }
  }
}

TEST(MpiCommunicator, RefusesPiecesThatAnMpiCountCannotExpress) {
  EXPECT_THROW(create_mpi_communicator({.piece_bytes = size_t{1} << 31}), ContractError);
  EXPECT_THROW(create_mpi_communicator({.piece_bytes = 0}), ContractError);
  EXPECT_THROW(create_mpi_communicator({.ranks_per_node = -1}), ContractError);
}

// Trains some toy steps. Returns the hash of the weights and the sum of squares of the last gradient.
std::pair<uint64_t, double> train(const ExchangeGroups& groups, const ReducerConfig& config, int lanes) {
  testing::TrainingRank rank(groups, config, DType::kBF16, testing::kToyCapacityBytes, {}, lanes);
  Communicator& communicator = groups.all();
  Communicator& first = *groups.stages()[0].group;
  const bool in_place = first.node_memory() != nullptr && first.local_size() == first.size() && first.size() > 1;
  const bool is_alone = communicator.size() == 1 && lanes > 1;
  const bool reads = (in_place && (lanes > communicator.size() || !is_coded(config.wire))) || is_alone;
  EXPECT_EQ(rank.reducer->path(), reads ? ContributionPath::kInPlace : ContributionPath::kExchanged);
  EXPECT_EQ(rank.buckets->weights_in_common(),
            in_place && groups.stages().size() == 1 && config.sharding == Sharding::kSharded);
  VerdictReduction verdicts(communicator, *rank.backend, *rank.stream);
  ShardedOptimizer optimizer(*rank.buckets, groups, *rank.backend, *rank.stream, config.sharding, {});
  optimizer.initialize(5);
  double sum_squares = 0.0;
  for (int step = 0; step < 3; ++step) {
    rank.reduce([step](int r, int p, int64_t e) { return testing::toy_gradient(r + 10 * step, p, e); });
    sum_squares = rank.verdict_of(verdicts, 0.0f).sum_squares;
    rank.update(optimizer, {}, 1e-2);
  }
  return {hash_weights(rank.parameters, *rank.backend, *rank.stream), sum_squares};
}

// By every exchange, on a real node and on pretended nodes, with a lane for each rank and with seven.
TEST(MpiCommunicator, TrainsBitForBitLikeOneRankAsAThread) {
  const auto communicator = create_communicator("mpi");
  const auto on_nodes = create_mpi_communicator({.ranks_per_node = 2});
  const int node_ranks = find_node_ranks(*on_nodes);
  EXPECT_EQ(node_ranks, expected_ranks == 3 ? 0 : std::min(2, expected_ranks));
  std::vector<ExchangeGroups> exchanges{*communicator, *on_nodes};
  for (Communicator* const ranks : {communicator.get(), on_nodes.get()}) {
    exchanges.emplace_back(*ranks, exchange_stages(Exchange::kHalving, ranks->size(), 0));
  }
  if (node_ranks > 0) {
    exchanges.emplace_back(*on_nodes, exchange_stages(Exchange::kHierarchical, expected_ranks, node_ranks));
  }
  for (const DType wire : {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      for (const int lanes : {expected_ranks, 7}) {
        const ReducerConfig config{.wire = wire, .sharding = sharding};
        std::pair<uint64_t, double> expected;
        run_ranks(1, [&](Communicator& alone) { expected = train(alone, config, lanes); });
        for (const ExchangeGroups& groups : exchanges) EXPECT_EQ(train(groups, config, lanes), expected);
      }
    }
  }
}

class StagedOverMpi : public ::testing::Test {
 protected:
  testing::EmulatedGpu gpu_;
  std::unique_ptr<Communicator> mpi_ = create_mpi_communicator({.piece_bytes = 100'003});
  std::unique_ptr<Backend> backend_ = create_backend("cuda");
  std::unique_ptr<Communicator> staged_ = create_staged_communicator(*mpi_, *backend_);
};

TEST_F(StagedOverMpi, KeepsTheContract) {
  ASSERT_EQ(staged_->size(), expected_ranks);
  EXPECT_EQ(staged_->name(), "mpi through host memory");
  testing::check_communicator_contract(*staged_, gpu_);
  testing::check_communicator_contract(*staged_);
}

TEST_F(StagedOverMpi, CarriesRandomSequencesOnSeveralStreams) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    // Every rank has a different order of streams.
    cuda::emulation::set_seed(seed * 100 + static_cast<uint64_t>(staged_->rank()));
    testing::run_random_collectives(*staged_, gpu_, {.seed = seed});
  }
}

void say(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);  // a killed process loses buffered output
}

void say_what_is_mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (const size_t path = line.find("/dev/shm/"); path != std::string::npos) say("maps " + line.substr(path));
  }
}

// Ranks sum gradients. If rank 1 is to die, it offers the first buckets and never the last, so the others wait for it.
// Prints the mappings of /dev/shm.
enum class RankOne : uint8_t { kLives, kDies };
int sum_gradients(RankOne rank_one) {
  const auto communicator = create_communicator("mpi");
  if (rank_one == RankOne::kDies && communicator->node_memory()->allocate(64, "a test") == nullptr) {
    say("the ranks share no memory");
    return EXIT_FAILURE;
  }
  testing::TrainingRank rank(*communicator, {});
  rank.reduce();
  say(fmt::format("process {}", getpid()));
  say_what_is_mapped();
  communicator->barrier();
  rank.reduce([&](int r, int parameter, int64_t element) {
    if (rank_one == RankOne::kDies && r == 1 && parameter == 0 && rank.reducer->started() > 0) {
      say(fmt::format("rank 1 dies: {} of {} buckets have started", rank.reducer->started(), rank.buckets->size()));
      kill(getpid(), SIGKILL);
    }
    return testing::toy_gradient(r, parameter, element);
  });
  say("the sum is complete");
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) return EXIT_FAILURE;
  if (std::strcmp(argv[1], "die") == 0) return mantissa::sum_gradients(mantissa::RankOne::kDies);
  if (std::strcmp(argv[1], "sum") == 0) return mantissa::sum_gradients(mantissa::RankOne::kLives);
  mantissa::expected_ranks = std::atoi(argv[1]);
  const auto environment =
      mantissa::create_communicator("mpi");  // MPI can start only once: this instance serves all cases
  return RUN_ALL_TESTS();
}
