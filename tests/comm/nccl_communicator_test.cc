// The NCCL transport on the emulated GPU, with a stand-in for NCCL.
#include "comm/nccl/nccl_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "core/base/log.h"
#include "core/cuda/emulation/settings.h"
#include "tests/comm/borrowed_communicator.h"
#include "tests/comm/emulated_gpu.h"
#include "tests/comm/fake_nccl.h"
#include "tests/comm/random_collectives.h"
#include "tests/comm/rank_threads.h"

namespace mantissa {
namespace {

using namespace std::chrono_literals;
using testing::FakeAllToAll;
using testing::FakeNcclPlan;
using testing::FakeStart;

constexpr int kSharingVersion = 23000;  // all ranks are on the one emulated GPU

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1); }
  void TearDown() override {
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    EXPECT_EQ(testing::fake_nccl_counts().group_depth, 0);
    EXPECT_EQ(testing::fake_nccl_counts().misuses, 0);
  }

  template <typename Body>
  static void run_ranks(int ranks, const NcclApi& api, const NcclOptions& options, Body body) {
    testing::run_ranks(ranks, [&](Communicator& local) {
      testing::EmulatedGpu gpu;
      const auto nccl = create_nccl_communicator(api, std::make_unique<testing::BorrowedCommunicator>(local), options);
      body(*nccl, gpu);
    });
  }
};

// One rank with its tensors.
struct OneRank {
  explicit OneRank(const NcclApi& api, const NcclOptions& options = {})
      : communicator(create_nccl_communicator(api, LocalGroup(1).take(0), options)) {}

  testing::EmulatedGpu gpu;
  std::unique_ptr<Stream> stream = gpu.create_stream();
  Tensor row = gpu.make(DType::kBF16, Shape{6}), rows = gpu.make(DType::kBF16, Shape{1, 6});
  std::unique_ptr<Communicator> communicator;

  std::unique_ptr<Work> gather() { return communicator->all_gather(row, rows, *stream); }
};

template <typename Failure = CommError, typename Call>
std::string failure_of(Call call) {
  try {
    call();
  } catch (const Failure& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return "";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

class NcclRanks : public NcclTest, public ::testing::WithParamInterface<std::tuple<int, FakeAllToAll>> {};

TEST_P(NcclRanks, KeepTheContract) {
  const auto [ranks, all_to_all] = GetParam();
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion}, all_to_all);
  run_ranks(ranks, api, {}, [](Communicator& communicator, testing::TensorPlace& gpu) {
    EXPECT_EQ(communicator.name(), "nccl");
    testing::check_communicator_contract(communicator, gpu);
    testing::check_communicator_contract(communicator);
  });
  const auto counts = testing::fake_nccl_counts();
  EXPECT_EQ(counts.started, ranks);
  EXPECT_EQ(counts.destroyed, ranks);
  EXPECT_EQ(counts.aborted, 0);
}

TEST_P(NcclRanks, CarryRandomSequencesOnSeveralStreams) {
  const auto [ranks, all_to_all] = GetParam();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    cuda::emulation::set_seed(seed);
    const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion}, all_to_all);
    run_ranks(ranks, api, {}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
      testing::run_random_collectives(communicator, gpu, {.seed = seed});
    });
    EXPECT_EQ(testing::fake_nccl_counts().destroyed, ranks);
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, NcclRanks,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(FakeAllToAll::kOffered, FakeAllToAll::kMissing)));

TEST_F(NcclTest, CountsElementsOfTheTensorsType) {
  for (const auto& [dtype, type] :
       {std::pair(DType::kBF16, ncclBfloat16), std::pair(DType::kF16, ncclFloat16), std::pair(DType::kF32, ncclFloat32),
        std::pair(DType::kU8, ncclUint8), std::pair(DType::kI32, ncclInt32)}) {
    for (const FakeAllToAll all_to_all : {FakeAllToAll::kOffered, FakeAllToAll::kMissing}) {
      const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion}, all_to_all);
      run_ranks(2, api, {}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
        const auto stream = gpu.create_stream();
        const Tensor row = gpu.make(dtype, Shape{6}), rows = gpu.make(dtype, Shape{2, 6});
        const Tensor others = gpu.make(dtype, Shape{2, 6});
        communicator.all_gather(row, rows, *stream)->wait();
        communicator.all_to_all(rows, others, *stream)->wait();
        communicator.broadcast(row, 1, *stream)->wait();
        stream->synchronize();
      });
      const auto calls = testing::fake_nccl_calls();
      EXPECT_EQ(calls.size(), all_to_all == FakeAllToAll::kOffered ? 6u : 12u);
      for (const auto& call : calls) {
        EXPECT_EQ(call.count, 6u) << call.name;
        EXPECT_EQ(call.type, type) << call.name;
      }
    }
  }
}

TEST_F(NcclTest, StartsWithTheFirstTensorsOfAGpuOnly) {
  const NcclApi api = testing::make_fake_nccl({});
  OneRank one(api);
  testing::HostPlace host;
  const Tensor row = host.make(DType::kF32, Shape{3}), rows = host.make(DType::kF32, Shape{1, 3});
  one.communicator->all_gather(row, rows, *one.stream)->wait();
  one.communicator->all_to_all(rows, rows, *one.stream)->wait();
  one.communicator->broadcast(row, 0, *one.stream)->wait();
  EXPECT_EQ(all_gather_records(*one.communicator, 3).at(0), 3);
  EXPECT_EQ(testing::fake_nccl_counts().started, 0);
  one.gather()->wait();
  one.gather()->wait();
  EXPECT_EQ(testing::fake_nccl_counts().started, 1);
}

TEST_F(NcclTest, AsksAsLongAsTheStartIsInProgress) {
  const NcclApi api = testing::make_fake_nccl({.polls = 500});
  OneRank one(api);
  one.gather()->wait();
  one.communicator.reset();
  EXPECT_EQ(testing::fake_nccl_counts().destroyed, 1);
}

TEST_F(NcclTest, GivesUpAStartThatDoesNotEnd) {
  const NcclApi api = testing::make_fake_nccl({.start = FakeStart::kNeverEnds});
  OneRank one(api, {.start_timeout = 50ms});
  expect_parts(failure_of([&] { one.gather(); }),
               {"[nccl] rank 0 of 1 (GPU 0 of node ", "not all ranks were there after 0.", "seconds"});
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
}

TEST_F(NcclTest, TellsWhyItDoesNotStart) {
  OneRank one(testing::make_fake_nccl({.start = FakeStart::kFails}));
  expect_parts(failure_of([&] { one.gather(); }),
               {"rank 0 of 1", "NCCL does not start", "unhandled system error", "the fake has its reasons"});
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
}

TEST_F(NcclTest, AllRanksHearThatRankZeroCannotBeReached) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion, .id_result = ncclSystemError});
  std::atomic<int> heard = 0;
  run_ranks(2, api, {}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
    const auto stream = gpu.create_stream();
    const Tensor data = gpu.make(DType::kU8, Shape{4});
    expect_parts(failure_of([&] { communicator.broadcast(data, 0, *stream); }),
                 {"rank 0 of 2", "cannot be reached", "unhandled system error"});
    ++heard;
  });
  EXPECT_EQ(heard, 2);
  EXPECT_EQ(testing::fake_nccl_counts().started, 0);
}

TEST_F(NcclTest, RefusesDifferentVersionsOnAllRanks) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  testing::run_ranks(2, [&](Communicator& local) {
    NcclApi mine = api;
    if (local.rank() == 1) {
      mine.get_version = [](int* version) {
        *version = 22809;
        return ncclSuccess;
      };
    }
    testing::EmulatedGpu gpu;
    const auto stream = gpu.create_stream();
    const auto communicator = create_nccl_communicator(mine, std::make_unique<testing::BorrowedCommunicator>(local));
    const Tensor data = gpu.make(DType::kU8, Shape{4});
    expect_parts(failure_of([&] { communicator->broadcast(data, 0, *stream); }),
                 {"rank 0 has NCCL 2.30.0, rank 1", "has 2.28.9"});
  });
}

TEST_F(NcclTest, RefusesTwoRanksOnOneGpu) {
  for (const int version : {22809, kSharingVersion}) {
    const NcclApi api = testing::make_fake_nccl({.version = version});
    if (version == kSharingVersion) unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    run_ranks(2, api, {}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
      const auto stream = gpu.create_stream();
      const Tensor data = gpu.make(DType::kU8, Shape{4});
      expect_parts(failure_of<ConfigError>([&] { communicator.broadcast(data, 0, *stream); }),
                   {"ranks 0 and 1 both have GPU 0", "it has 2 ranks, and rank 1 sees 1 GPU.", "comm.backend: mpi",
                    "NCCL_MULTI_RANK_GPU_ENABLE=1", "this is " + nccl_version_text(version)});
    });
    EXPECT_EQ(testing::fake_nccl_counts().started, 0);
  }
}

// As a thread does that waits for the GPU.
void wait_for(Stream& stream) {
  const auto end = stream.record();
  while (!end->done()) std::this_thread::yield();
}

TEST_F(NcclTest, AsynchronousErrorsFreeTheStreamAndAreToldFromThenOn) {
  const NcclApi api = testing::make_fake_nccl({.operations_end = false});
  OneRank one(api, {.watch_interval = 5ms});
  const auto work = one.gather();
  work->wait();  // the stream is ordered behind it, but it does not end
  const auto end = one.stream->record();
  for (int look = 0; look < 100; ++look) EXPECT_FALSE(end->done());
  testing::set_fake_nccl_error(ncclRemoteError);
  wait_for(*one.stream);
  const std::vector<std::string> parts = {"[all_gather] rank 0 of 1 (GPU 0 of node ",
                                          ", 24 bytes: remote process exited", "NCCL says: the fake has its reasons"};
  expect_parts(failure_of([&] { work->test(); }), parts);
  expect_parts(failure_of([&] { work->wait(); }), parts);
  expect_parts(failure_of([&] { one.gather(); }), parts);
  expect_parts(failure_of([&] { one.communicator->barrier(); }), parts);
  expect_parts(failure_of([&] { one.communicator->all_gather_bytes({}); }), parts);
  one.communicator.reset();
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
  EXPECT_EQ(testing::fake_nccl_counts().finalized, 0);
}

TEST_F(NcclTest, CollectivesThatDoNotEndAreAborted) {
  const NcclApi api = testing::make_fake_nccl({.operations_end = false});
  OneRank one(api, {.collective_timeout = 50ms, .watch_interval = 5ms});
  const auto work = one.gather();
  work->wait();
  wait_for(*one.stream);
  expect_parts(failure_of([&] { work->test(); }),
               {"[all_gather] rank 0 of 1", "24 bytes", "it has not ended after 0."});
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
}

TEST_F(NcclTest, WhoAsksDuringAnAbortIsToldAtOnce) {
  const NcclApi api = testing::make_fake_nccl({.operations_end = false, .aborts_return = false});
  OneRank one(api, {.watch_interval = 5ms});
  const auto work = one.gather();
  work->wait();
  testing::set_fake_nccl_error(ncclRemoteError);
  while (testing::fake_nccl_counts().aborted == 0) std::this_thread::yield();
  expect_parts(failure_of([&] { work->test(); }), {"[all_gather] rank 0 of 1", "remote process exited"});
  expect_parts(failure_of([&] { one.communicator->barrier(); }), {"[all_gather] rank 0 of 1"});
  testing::let_fake_nccl_aborts_return();
  wait_for(*one.stream);
}

TEST_F(NcclTest, AnAbortThatDoesNotReturnEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    start_logging(0, 1);
    const NcclApi api = testing::make_fake_nccl({.operations_end = false, .aborts_return = false});
    OneRank one(api, {.collective_timeout = 20ms, .abort_timeout = 40ms, .watch_interval = 5ms});
    one.gather()->wait();
    wait_for(*one.stream);
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(static_cast<int>(ExitCode::kComm)),
              "all_gather. rank 0 of 1 .*it has not ended.*\n.*rank 0 of 1 .*ncclCommAbort has not returned after 0.0 "
              "seconds; the process ends here.*all_gather");
}

// Both ways to end it free what it names.
TEST_F(NcclTest, ACommunicatorIsFreedOnce) {
  OneRank one(testing::make_fake_nccl({.destroy_result = ncclSystemError}));
  one.gather()->wait();
  one.communicator.reset();
  EXPECT_EQ(testing::fake_nccl_counts().destroyed, 1);
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 0);
}

TEST_F(NcclTest, NobodyWatchesWhileTheJobEnds) {
  OneRank one(testing::make_fake_nccl({}), {.watch_interval = 1ms});
  one.gather()->wait();
  one.communicator->abort(1);
  testing::set_fake_nccl_error(ncclRemoteError);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 0);
  testing::set_fake_nccl_error(ncclSuccess);
}

TEST_F(NcclTest, BlockingCallsCannotBeAskedForByTheEnvironment) {
  for (const char* value : {"1", "0", "yes"}) {
    setenv("NCCL_COMM_BLOCKING", value, 1);
    OneRank one(testing::make_fake_nccl({}));
    EXPECT_STREQ(std::getenv("NCCL_COMM_BLOCKING"), "0");
    one.gather()->wait();
  }
}

// A stream that goes as soon as recording on it has failed.
class StreamThatCannotRecord final : public Stream {
 public:
  explicit StreamThatCannotRecord(int& records) : records_(records) {}
  std::unique_ptr<Event> record() override {
    ++records_;
    throw cuda::CudaError("[cudaEventRecord] an illegal memory access was encountered");
  }
  void wait(const Event&) override {}
  void synchronize() override {}

 private:
  int& records_;
};

TEST_F(NcclTest, AStreamThatCannotRecordIsForgottenAtOnce) {
  const NcclApi api = testing::make_fake_nccl({.polls = 0});
  OneRank tensors(api);
  NcclConnection connection(api, ncclUniqueId{}, {.node = "a"}, {});
  int records = 0;
  {
    StreamThatCannotRecord stream(records);
    const auto gather = [&](ncclComm_t comm) {
      return api.all_gather(tensors.row.raw(), tensors.rows.raw(), 6, ncclBfloat16, comm,
                            cuda::as_cuda(*tensors.stream).handle());
    };
    expect_parts(failure_of([&] {
                   connection.issue({"all_gather", 24}, stream, gather);
                 }),
                 {"[all_gather] rank 0 of 1 (GPU 0 of node a), 24 bytes: its end cannot be watched", "illegal memory"});
  }
  connection.forget(1);
  expect_parts(failure_of([&] { connection.launched(1); }), {"its end cannot be watched"});
  EXPECT_EQ(records, 1);
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
}

// Idle time is no part of a collective's.
TEST_F(NcclTest, CollectivesThatEndAreNotAborted) {
  OneRank one(testing::make_fake_nccl({}), {.collective_timeout = 60ms, .watch_interval = 5ms});
  for (int round = 0; round < 4; ++round) {
    one.gather()->wait();
    one.stream->synchronize();
    std::this_thread::sleep_for(80ms);
  }
  one.communicator->barrier();
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 0);
}

TEST_F(NcclTest, RanksThatDoNotComeAreToldOf) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  std::atomic<bool> told = false;
  run_ranks(
      2, api, {.collective_timeout = 50ms, .watch_interval = 5ms},
      [&](Communicator& communicator, testing::TensorPlace& gpu) {
        const auto stream = gpu.create_stream();
        const Tensor data = gpu.make(DType::kU8, Shape{4});
        communicator.broadcast(data, 0, *stream)->wait();
        stream->synchronize();
        if (communicator.rank() == 1) {
          while (!told) std::this_thread::yield();
          return;
        }
        const auto work = communicator.broadcast(data, 0, *stream);
        EXPECT_FALSE(work->test());
        expect_parts(failure_of([&] { work->wait(); }), {"[broadcast] rank 0 of 2", "4 bytes", "it has not ended"});
        told = true;
      });
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
  EXPECT_EQ(testing::fake_nccl_counts().destroyed, 1);
}

TEST_F(NcclTest, AFailedMessageStillClosesItsGroup) {
  for (int failing = 0; failing < 2; ++failing) {
    const NcclApi api =
        testing::make_fake_nccl({.version = kSharingVersion, .failing_send = failing}, FakeAllToAll::kMissing);
    OneRank one(api);
    const Tensor receive = one.gpu.make(DType::kBF16, Shape{1, 6});
    if (failing == 1) one.communicator->all_to_all(one.rows, receive, *one.stream)->wait();
    expect_parts(failure_of([&] { one.communicator->all_to_all(one.rows, receive, *one.stream); }),
                 {"[all_to_all] rank 0 of 1", "24 bytes: invalid argument"});
    EXPECT_EQ(testing::fake_nccl_counts().group_depth, 0);
    EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
  }
}

TEST_F(NcclTest, EmptyTensorsCallNothing) {
  OneRank one(testing::make_fake_nccl({}));
  const Tensor none = one.gpu.make(DType::kF32, Shape{0}), no_rows = one.gpu.make(DType::kF32, Shape{1, 0});
  EXPECT_TRUE(one.communicator->all_gather(none, no_rows, *one.stream)->test());
  one.communicator->broadcast(none, 0, *one.stream)->wait();
  EXPECT_TRUE(testing::fake_nccl_calls().empty());
}

// The stream may go right after a Work that nobody asks for.
TEST_F(NcclTest, WorkThatIsGivenUpIsStillLaunched) {
  OneRank one(testing::make_fake_nccl({.polls = 50}));
  {
    const auto stream = one.gpu.create_stream();
    const auto work = one.communicator->all_gather(one.row, one.rows, *stream);
    EXPECT_FALSE(work->test());
  }
  one.gather()->wait();
  one.communicator.reset();
  EXPECT_EQ(testing::fake_nccl_counts().destroyed, 1);
}

TEST_F(NcclTest, AnExceptionOnItsWayAbortsInsteadOfWaitingForTheOthers) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  std::atomic<bool> gone = false;
  run_ranks(2, api, {}, [&](Communicator& outer, testing::TensorPlace& gpu) {
    const auto stream = gpu.create_stream();
    const Tensor data = gpu.make(DType::kU8, Shape{4});
    outer.broadcast(data, 0, *stream)->wait();
    stream->synchronize();
    if (outer.rank() == 1) {
      while (!gone) std::this_thread::yield();
      return;
    }
    try {
      const auto work = outer.broadcast(data, 0, *stream);  // rank 1 never comes
      throw FaultError("the loss is NaN");
    } catch (const FaultError&) {
      gone = true;
    }
    expect_parts(failure_of([&] { outer.barrier(); }),
                 {"[broadcast] rank 0 of 2", "given up while it was being launched"});
  });
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);

  const NcclApi again = testing::make_fake_nccl({});
  try {
    OneRank one(again);
    one.gather()->wait();
    throw FaultError("the loss is NaN");
  } catch (const FaultError&) {
  }
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
  EXPECT_EQ(testing::fake_nccl_counts().finalized, 0);
}

TEST_F(NcclTest, RegistersBuffersUntilTheyAreLetGo) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  run_ranks(2, api, {}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
    const auto stream = gpu.create_stream();
    const std::vector<Tensor> buffers = {gpu.make(DType::kBF16, Shape{6}), gpu.make(DType::kBF16, Shape{2, 6})};
    {
      const auto registration = communicator.register_buffers(buffers);
      ASSERT_NE(registration, nullptr);
      for (const Tensor& buffer : buffers) EXPECT_TRUE(testing::fake_nccl_has_registered(buffer.raw()));
      communicator.all_gather(buffers[0], buffers[1], *stream)->wait();  // under way when the registration goes
    }
    for (const Tensor& buffer : buffers) EXPECT_FALSE(testing::fake_nccl_has_registered(buffer.raw()));
  });
  EXPECT_EQ(testing::fake_nccl_counts().destroyed, 2);
}

TEST_F(NcclTest, RegistersOnAllRanksOrOnNone) {
  for (int failing = 0; failing < 4; ++failing) {
    const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion, .failing_register = failing});
    run_ranks(2, api, {}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
      const std::vector<Tensor> buffers = {gpu.make(DType::kBF16, Shape{6}), gpu.make(DType::kBF16, Shape{2, 6})};
      EXPECT_EQ(communicator.register_buffers(buffers), nullptr);
      communicator.barrier();
      EXPECT_EQ(testing::fake_nccl_counts().registered, 0);
      const auto stream = gpu.create_stream();
      communicator.all_gather(buffers[0], buffers[1], *stream)->wait();
    });
    EXPECT_EQ(testing::fake_nccl_counts().aborted, 0);
  }
}

TEST_F(NcclTest, RegistersNothingWhereItCannotMatter) {
  OneRank one(testing::make_fake_nccl({}));
  EXPECT_EQ(one.communicator->register_buffers(std::vector{one.rows}), nullptr);
  EXPECT_EQ(testing::fake_nccl_counts().started, 0);

  NcclApi old = testing::make_fake_nccl({.version = kSharingVersion});
  old.comm_register = nullptr;
  old.comm_deregister = nullptr;
  run_ranks(2, old, {}, [](Communicator& communicator, testing::TensorPlace& gpu) {
    EXPECT_EQ(communicator.register_buffers({}), nullptr);
    testing::HostPlace host;
    EXPECT_EQ(communicator.register_buffers(std::vector{host.make(DType::kF32, Shape{3})}), nullptr);
    EXPECT_EQ(communicator.register_buffers(std::vector{gpu.make(DType::kF32, Shape{3})}), nullptr);
  });
}

// NCCL forgets them itself then.
TEST_F(NcclTest, ARegistrationMayOutliveAnAbort) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  run_ranks(2, api, {.watch_interval = 5ms}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
    const Tensor buffer = gpu.make(DType::kBF16, Shape{6});
    const auto registration = communicator.register_buffers(std::vector{buffer});
    ASSERT_NE(registration, nullptr);
    communicator.barrier();
    testing::set_fake_nccl_error(ncclRemoteError);
    while (testing::fake_nccl_has_registered(buffer.raw())) std::this_thread::yield();
  });
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 2);
}

TEST_F(NcclTest, AnExceptionOnItsWayLeavesRegistrationsToTheAbort) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  const auto train = [&] {
    run_ranks(2, api, {}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
      const auto stream = gpu.create_stream();
      const Tensor buffer = gpu.make(DType::kBF16, Shape{6});
      const auto registration = communicator.register_buffers(std::vector{buffer});
      communicator.broadcast(buffer, 0, *stream)->wait();
      throw FaultError("the loss is NaN");
    });
  };
  EXPECT_EQ(failure_of<FaultError>(train), "the loss is NaN");
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 2);
  EXPECT_EQ(testing::fake_nccl_counts().deregistered, 0);
  EXPECT_EQ(testing::fake_nccl_counts().registered, 0);
}

TEST_F(NcclTest, StaysWithTheGpuOfItsFirstTensors) {
  OneRank one(testing::make_fake_nccl({}));
  one.gather()->wait();
  std::byte byte{};
  const auto elsewhere = std::make_shared<Storage>(&byte, 1, Device{Device::Kind::kCuda, 1}, nullptr);
  const std::string text = failure_of<ContractError>(
      [&] { one.communicator->broadcast(Tensor(elsewhere, DType::kU8, Shape{1}), 0, *one.stream); });
  EXPECT_EQ(text, "[nccl] the ranks are connected through GPU 0, got tensors of GPU 1");
}

TEST(NcclOptions, ComeFromTheEnvironment) {
  unsetenv("MANTISSA_NCCL_TIMEOUT");
  EXPECT_EQ(nccl_options_from_environment().start_timeout, 300s);
  EXPECT_EQ(nccl_options_from_environment().collective_timeout, 600s);
  setenv("MANTISSA_NCCL_START_TIMEOUT", "20", 1);
  setenv("MANTISSA_NCCL_TIMEOUT", "7", 1);
  EXPECT_EQ(nccl_options_from_environment().start_timeout, 20s);
  EXPECT_EQ(nccl_options_from_environment().collective_timeout, 7s);
  for (const char* text : {"", "0", "-3", "5s", "1e9", "99999999999999999999"}) {
    setenv("MANTISSA_NCCL_TIMEOUT", text, 1);
    EXPECT_EQ(failure_of<ConfigError>([] { nccl_options_from_environment(); }),
              fmt::format("MANTISSA_NCCL_TIMEOUT must be a number of seconds, at least 1, got '{}'", text));
  }
  unsetenv("MANTISSA_NCCL_START_TIMEOUT");
  unsetenv("MANTISSA_NCCL_TIMEOUT");
}

}  // namespace
}  // namespace mantissa
