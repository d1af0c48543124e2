#include "comm/staged/staged_communicator.h"

#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "comm/local/local_communicator.h"
#include "core/backend/registry.h"
#include "core/cuda/emulation/faults.h"
#include "core/cuda/emulation/stream_queue.h"
#include "tests/comm/communicator_contract.h"
#include "tests/comm/emulated_gpu.h"

namespace mantissa {
namespace {

// Runs `body` on every rank with a communicator that stages through host memory.
template <typename Body>
void run_staged_ranks(int ranks, Body body) {
  run_ranks(ranks, [&](Communicator& local) {
    const auto backend = create_backend("cuda");
    const auto staged = create_staged_communicator(local, *backend);
    testing::EmulatedGpu gpu;
    body(*staged, gpu);
  });
}

class StagedRanks : public ::testing::TestWithParam<int> {};

TEST_P(StagedRanks, KeepTheContractOnTheDevice) {
  run_staged_ranks(GetParam(), [](Communicator& communicator, testing::TensorPlace& gpu) {
    testing::check_communicator_contract(communicator, gpu);
  });
}

TEST_P(StagedRanks, KeepTheContractOnTheHost) {
  run_staged_ranks(GetParam(), [](Communicator& communicator, testing::TensorPlace&) {
    testing::check_communicator_contract(communicator);
  });
}

TEST_P(StagedRanks, StartCollectivesInTheOrderInWhichTheyWereIssued) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    cuda::emulation::set_seed(seed);
    for (const auto abandoned : {testing::AbandonedWorks::kNone, testing::AbandonedWorks::kSome}) {
      run_staged_ranks(GetParam(), [&](Communicator& communicator, testing::TensorPlace& gpu) {
        testing::run_random_collectives(communicator, gpu, {.seed = seed, .abandoned = abandoned});
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, StagedRanks, ::testing::Values(1, 2, 3));

// A transport that records its collectives and fails on request.
class WatchedTransport final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::string name() const override { return "watched"; }
  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    started += "a";
    return wrap(ForwardingCommunicator::all_to_all(send, recv, stream));
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    started += "g";
    return wrap(ForwardingCommunicator::all_gather(send, recv, stream));
  }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    started += "r";
    return ForwardingCommunicator::all_gather_bytes(mine);
  }

  std::string started;
  bool fails = false;

 private:
  class WatchedWork final : public Work {
   public:
    WatchedWork(WatchedTransport& transport, std::unique_ptr<Work> work)
        : transport_(transport), work_(std::move(work)) {}
    bool test() override {
      if (transport_.fails) throw CommError("the cable is unplugged");
      return work_->test();
    }
    void wait() override { work_->wait(); }

   private:
    WatchedTransport& transport_;
    std::unique_ptr<Work> work_;
  };
  std::unique_ptr<Work> wrap(std::unique_ptr<Work> work) {
    return std::make_unique<WatchedWork>(*this, std::move(work));
  }
};

// Holds a stream back, as slow kernels do.
class Gate {
 public:
  explicit Gate(Stream& stream) {
    event_->recorded = 1;
    cuda::wait(cuda::as_cuda(stream).handle(), event_);
  }
  ~Gate() {
    open();
    cuda::destroy_event(event_);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() { event_->completed = 1; }

 private:
  cuda::EventHandle event_ = cuda::create_event();
};

// One rank, its watched transport, and a GPU.
struct StagedRank {
  LocalGroup group{1};
  WatchedTransport transport{group.rank(0)};
  std::unique_ptr<Backend> backend = create_backend("cuda");
  std::unique_ptr<Communicator> staged = create_staged_communicator(transport, *backend);
  testing::EmulatedGpu gpu;
  testing::HostPlace host;
  std::unique_ptr<Stream> held = gpu.create_stream(), free = gpu.create_stream();

  Tensor tensor(testing::TensorPlace& place, std::byte value) {
    Tensor result = place.make(DType::kU8, Shape{1, 4});
    place.write(std::vector<std::byte>(4, value), result, *free);
    free->synchronize();
    return result;
  }
};

constexpr std::byte kSent{7}, kOld{1};
const std::vector<std::byte> kSentBytes(4, kSent);

// A copy still on the device delays all later collectives, whatever their stream, kind and memory.
TEST(StagedCommunicator, StartsNothingOutOfTurnAndBlocksNobody) {
  StagedRank one;
  const Tensor send = one.tensor(one.gpu, kSent), first = one.tensor(one.gpu, kOld);
  const Tensor second = one.tensor(one.gpu, kOld), third = one.tensor(one.host, kOld);
  const Tensor fourth = one.tensor(one.gpu, kOld), host_send = one.tensor(one.host, kSent);
  Gate gate(*one.held);
  const auto exchange = one.staged->all_to_all(send, first, *one.held);
  const auto gather = one.staged->all_gather(send, second, *one.free);
  const auto on_host = one.staged->all_to_all(host_send, third, *one.free);
  const auto last = one.staged->all_gather(send, fourth, *one.free);
  for (int look = 0; look < 50; ++look) {
    EXPECT_FALSE(last->test());
    EXPECT_FALSE(gather->test());
    EXPECT_FALSE(on_host->test());
    EXPECT_FALSE(exchange->test());
  }
  EXPECT_EQ(one.transport.started, "");
  gate.open();
  // Records follow all collectives issued before.
  EXPECT_EQ(all_gather_records(*one.staged, 5).at(0), 5);
  EXPECT_EQ(one.transport.started, "agagr");
  last->wait();
  on_host->wait();
  gather->wait();
  exchange->wait();
  EXPECT_EQ(one.gpu.read(first, *one.held), kSentBytes);
  EXPECT_EQ(one.gpu.read(second, *one.free), kSentBytes);
  EXPECT_EQ(one.host.read(third, *one.free), kSentBytes);
  EXPECT_EQ(one.gpu.read(fourth, *one.free), kSentBytes);
}

TEST(StagedCommunicator, HostTensorsGoStraightToTheTransport) {
  StagedRank one;
  const Tensor send = one.tensor(one.host, kSent), receive = one.tensor(one.host, kOld);
  const auto work = one.staged->all_to_all(send, receive, *one.held);
  EXPECT_EQ(one.transport.started, "a");
  work->wait();
  EXPECT_EQ(one.host.read(receive, *one.free), kSentBytes);
  EXPECT_EQ(one.staged->name(), "watched through host memory");
}

TEST(StagedCommunicator, RefusesOperandsInDifferentMemory) {
  StagedRank one;
  const Tensor on_host = one.tensor(one.host, kSent), on_gpu = one.tensor(one.gpu, kOld);
  try {
    one.staged->all_to_all(on_host, on_gpu, *one.free);
    FAIL() << "expected a ContractError";
  } catch (const ContractError& error) {
    EXPECT_STREQ(error.what(), "[all_to_all] send must be in the memory of GPU 0, it is in host memory");
  }
  EXPECT_THROW(one.staged->all_to_all(on_gpu, on_host, *one.free), ContractError);
  EXPECT_EQ(one.transport.started, "");
}

// Tensors and stream of an abandoned Work may be destroyed at once. Nothing writes to them any more, and the collective
// still runs.
TEST(StagedCommunicator, WorkThatIsGivenUpStillTakesItsTurn) {
  StagedRank one;
  const Tensor receive = one.tensor(one.gpu, kOld);
  {
    const auto stream = one.gpu.create_stream();
    Gate gate(*stream);
    const Tensor send = one.tensor(one.gpu, kSent);
    const auto work = one.staged->all_to_all(send, receive, *stream);
    EXPECT_EQ(one.transport.started, "");
  }
  one.staged->all_gather(one.tensor(one.gpu, kSent), one.tensor(one.gpu, kOld), *one.free)->wait();
  EXPECT_EQ(one.transport.started, "ag");
  EXPECT_EQ(one.gpu.read(receive, *one.free), std::vector<std::byte>(4, kOld));
}

TEST(StagedCommunicator, CanEndWithCopiesAndCollectivesUnderWay) {
  StagedRank one;
  const Tensor send = one.tensor(one.gpu, kSent), receive = one.tensor(one.gpu, kOld);
  const auto started = one.staged->all_to_all(send, receive, *one.free);
  while (one.transport.started.empty()) started->test();
  const auto queued = one.staged->all_gather(send, receive, *one.free);
  one.staged.reset();
}

TEST(StagedCommunicator, PassesTheTransportsErrorsOnForEver) {
  StagedRank one;
  const Tensor send = one.tensor(one.gpu, kSent), receive = one.tensor(one.gpu, kOld);
  const Tensor other = one.tensor(one.gpu, kOld);
  Gate gate(*one.held);
  const auto work = one.staged->all_to_all(send, receive, *one.held);
  const auto behind = one.staged->all_to_all(send, other, *one.free);
  one.transport.fails = true;
  gate.open();
  const auto expect_failure = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "expected a CommError";
    } catch (const CommError& error) {
      EXPECT_STREQ(error.what(), "the cable is unplugged");
    }
  };
  expect_failure([&] { work->wait(); });
  one.transport.fails = false;
  expect_failure([&] { work->test(); });
  expect_failure([&] { behind->wait(); });
  expect_failure([&] { one.staged->all_to_all(send, other, *one.free); });
}

class StagingPoolTest : public ::testing::Test {
 protected:
  class Flag final : public Event {
   public:
    explicit Flag(const bool& raised) : raised_(raised) {}
    bool done() const override { return raised_; }

   private:
    const bool& raised_;
  };

  std::unique_ptr<Backend> backend_ = create_backend("cuda");
  StagingPool pool_{*backend_};
};

TEST_F(StagingPoolTest, HandsMemoryOutAgainWhenItsLastCopyHasPassed) {
  auto memory = pool_.take(1000);
  const std::byte* const place = memory->data();
  EXPECT_GE(memory->bytes(), 1000u);
  bool passed = false;
  pool_.give_back(std::move(memory), std::make_unique<Flag>(passed));
  auto other = pool_.take(1000);
  EXPECT_NE(other->data(), place);
  passed = true;
  EXPECT_EQ(pool_.take(1000)->data(), place);
}

TEST_F(StagingPoolTest, KeepsMemoryThatATransportStillHolds) {
  auto memory = pool_.take(1000);
  const auto held = memory;
  pool_.give_back(std::move(memory), nullptr);
  EXPECT_NE(pool_.take(1000)->data(), held->data());
  EXPECT_EQ(pool_.blocks(), 1u);
}

TEST_F(StagingPoolTest, TakesTheSmallestBlockThatSufficesAndGrowsTheLargest) {
  constexpr size_t kMiB = size_t{1} << 20;
  auto small = pool_.take(kMiB), middle = pool_.take(2 * kMiB), large = pool_.take(3 * kMiB);
  const std::byte* const place = middle->data();
  for (auto* memory : {&small, &large, &middle}) pool_.give_back(std::move(*memory), nullptr);
  auto taken = pool_.take(2 * kMiB - 5);
  EXPECT_EQ(taken->data(), place);
  EXPECT_EQ(pool_.blocks(), 2u);
  EXPECT_GE(pool_.take(9 * kMiB)->bytes(), 9 * kMiB);
  EXPECT_EQ(pool_.blocks(), 1u);  // replaced the block of 3 MiB
  EXPECT_GE(pool_.take(0)->bytes(), 1u);
}

}  // namespace
}  // namespace mantissa
