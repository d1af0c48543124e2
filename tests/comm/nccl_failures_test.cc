// Failures of NCCL, of the GPU and of other ranks.
#include <gtest/gtest.h>

#include <atomic>

#include "core/base/log.h"
#include "tests/comm/nccl_ranks.h"

namespace mantissa {
namespace {

using namespace std::chrono_literals;
using testing::expect_parts;
using testing::failure_of;
using testing::FakeAllToAll;
using testing::kSharingVersion;
using testing::NcclTest;
using testing::OneRank;
using testing::wait_for;

TEST_F(NcclTest, AsynchronousErrorsFreeTheStreamAndAreToldFromThenOn) {
  const NcclApi api = testing::make_fake_nccl({.operations_end = false});
  OneRank one(api, {.watch_interval = 5ms});
  const auto work = one.gather();
  work->wait();  // orders the stream after it, though it never ends
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

// Both destroy and abort free the communicator.
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

// A stream on which recording fails.
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

// Idle time does not count as a collective's time.
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
        const Tensor row = gpu.make(DType::kU8, Shape{4}), rows = gpu.make(DType::kU8, Shape{2, 4});
        communicator.all_gather(row, rows, *stream)->wait();
        stream->synchronize();
        if (communicator.rank() == 1) {
          while (!told) std::this_thread::yield();
          return;
        }
        const auto work = communicator.all_gather(row, rows, *stream);
        EXPECT_FALSE(work->test());
        expect_parts(failure_of([&] { work->wait(); }), {"[all_gather] rank 0 of 2", "12 bytes", "it has not ended"});
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

TEST_F(NcclTest, AnExceptionOnItsWayAbortsInsteadOfWaitingForTheOthers) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  std::atomic<bool> gone = false;
  run_ranks(2, api, {}, [&](Communicator& outer, testing::TensorPlace& gpu) {
    const auto stream = gpu.create_stream();
    const Tensor row = gpu.make(DType::kU8, Shape{4}), rows = gpu.make(DType::kU8, Shape{2, 4});
    outer.all_gather(row, rows, *stream)->wait();
    stream->synchronize();
    if (outer.rank() == 1) {
      while (!gone) std::this_thread::yield();
      return;
    }
    try {
      const auto work = outer.all_gather(row, rows, *stream);  // rank 1 never calls it
      throw FaultError("the loss is NaN");
    } catch (const FaultError&) {
      gone = true;
    }
    expect_parts(failure_of([&] { outer.barrier(); }),
                 {"[all_gather] rank 0 of 2", "given up while it was being launched"});
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

}  // namespace
}  // namespace mantissa
