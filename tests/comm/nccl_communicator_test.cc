// The NCCL transport on the emulated GPU with a stand-in for NCCL, and the installed NCCL library.
#include <gtest/gtest.h>
#include <atomic>

#include "comm/nccl/nccl_connection.h"
#include "core/base/error.h"
#include "core/cuda/emulation/faults.h"
#include "tests/comm/communicator_contract.h"
#include "tests/comm/nccl_ranks.h"

namespace mantissa {
namespace {

using namespace std::chrono_literals;
using testing::expect_parts;
using testing::failure_of;
using testing::FakeAllToAll;
using testing::FakeStart;
using testing::kSharingVersion;
using testing::NcclTest;
using testing::OneRank;

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
  EXPECT_EQ(counts.started, 3 * ranks);  // its own connection, and those of two groups
  EXPECT_EQ(counts.destroyed, 3 * ranks);
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
        stream->synchronize();
      });
      const auto calls = testing::fake_nccl_calls();
      EXPECT_EQ(calls.size(), all_to_all == FakeAllToAll::kOffered ? 4u : 10u);
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
    const Tensor row = gpu.make(DType::kU8, Shape{4}), rows = gpu.make(DType::kU8, Shape{2, 4});
    expect_parts(failure_of([&] { communicator.all_gather(row, rows, *stream); }),
                 {"rank 0 of 2", "cannot be reached", "unhandled system error"});
    ++heard;
  });
  EXPECT_EQ(heard, 2);
  EXPECT_EQ(testing::fake_nccl_counts().started, 0);
}

TEST_F(NcclTest, RefusesDifferentVersionsOnAllRanks) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  mantissa::run_ranks(2, [&](Communicator& local) {
    NcclApi mine = api;
    if (local.rank() == 1) {
      mine.get_version = [](int* version) {
        *version = 22809;
        return ncclSuccess;
      };
    }
    testing::EmulatedGpu gpu;
    const auto stream = gpu.create_stream();
    const auto communicator = create_nccl_communicator(mine, std::make_unique<ForwardingCommunicator>(local));
    const Tensor row = gpu.make(DType::kU8, Shape{4}), rows = gpu.make(DType::kU8, Shape{2, 4});
    expect_parts(failure_of([&] { communicator->all_gather(row, rows, *stream); }),
                 {"rank 0 has NCCL 2.30.0, rank 1", "has 2.28.9"});
  });
}

TEST_F(NcclTest, RefusesTwoRanksOnOneGpu) {
  for (const int version : {22809, kSharingVersion}) {
    const NcclApi api = testing::make_fake_nccl({.version = version});
    if (version == kSharingVersion) unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    run_ranks(2, api, {}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
      const auto stream = gpu.create_stream();
      const Tensor row = gpu.make(DType::kU8, Shape{4}), rows = gpu.make(DType::kU8, Shape{2, 4});
      expect_parts(failure_of<ConfigError>([&] { communicator.all_gather(row, rows, *stream); }),
                   {"ranks 0 and 1 both have GPU 0", "it has 2 ranks, and rank 1 sees 1 GPU.", "comm.backend: mpi",
                    "NCCL_MULTI_RANK_GPU_ENABLE=1", "this is " + nccl_version_text(version)});
    });
    EXPECT_EQ(testing::fake_nccl_counts().started, 0);
  }
}

TEST_F(NcclTest, BlockingCallsCannotBeAskedForByTheEnvironment) {
  for (const char* value : {"1", "0", "yes"}) {
    setenv("NCCL_COMM_BLOCKING", value, 1);
    OneRank one(testing::make_fake_nccl({}));
    EXPECT_STREQ(std::getenv("NCCL_COMM_BLOCKING"), "0");
    one.gather()->wait();
  }
}

TEST_F(NcclTest, EmptyTensorsCallNothing) {
  OneRank one(testing::make_fake_nccl({}));
  const Tensor none = one.gpu.make(DType::kF32, Shape{0}), no_rows = one.gpu.make(DType::kF32, Shape{1, 0});
  EXPECT_TRUE(one.communicator->all_gather(none, no_rows, *one.stream)->test());
  one.communicator->all_to_all(no_rows, no_rows, *one.stream)->wait();
  EXPECT_TRUE(testing::fake_nccl_calls().empty());
}

// The stream may be destroyed right after the Work is abandoned.
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

TEST_F(NcclTest, StaysWithTheGpuOfItsFirstTensors) {
  OneRank one(testing::make_fake_nccl({}));
  one.gather()->wait();
  std::byte byte{};
  const auto elsewhere = std::make_shared<Storage>(&byte, 1, Device{Device::Kind::kCuda, 1}, nullptr);
  const Tensor row(elsewhere, DType::kU8, Shape{1}), rows(elsewhere, DType::kU8, Shape{1, 1});
  const std::string text = failure_of<ContractError>([&] { one.communicator->all_gather(row, rows, *one.stream); });
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

// Registered buffers.

TEST_F(NcclTest, RegistersBuffersUntilTheyAreLetGo) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  run_ranks(2, api, {}, [&](Communicator& communicator, testing::TensorPlace& gpu) {
    const auto stream = gpu.create_stream();
    const std::vector<Tensor> buffers = {gpu.make(DType::kBF16, Shape{6}), gpu.make(DType::kBF16, Shape{2, 6})};
    {
      const auto registration = communicator.register_buffers(buffers);
      ASSERT_NE(registration, nullptr);
      for (const Tensor& buffer : buffers) EXPECT_TRUE(testing::fake_nccl_has_registered(buffer.raw()));
      communicator.all_gather(buffers[0], buffers[1], *stream)->wait();  // still running at deregistration
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

// After an abort NCCL drops registrations itself.
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
      const Tensor buffer = gpu.make(DType::kBF16, Shape{6}), rows = gpu.make(DType::kBF16, Shape{2, 6});
      const auto registration = communicator.register_buffers(std::vector{buffer});
      communicator.all_gather(buffer, rows, *stream)->wait();
      throw FaultError("the loss is NaN");
    });
  };
  EXPECT_EQ(failure_of<FaultError>(train), "the loss is NaN");
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 2);
  EXPECT_EQ(testing::fake_nccl_counts().deregistered, 0);
  EXPECT_EQ(testing::fake_nccl_counts().registered, 0);
}

// The installed NCCL library. No call needs a GPU.

TEST(NcclLibrary, GivesAllFunctions) {
  const NcclApi api = load_nccl();
  const int version = nccl_version(api);
  EXPECT_EQ(version >= 22800, api.all_to_all != nullptr);
  EXPECT_EQ(version >= 21900, api.comm_register != nullptr);
  EXPECT_EQ(version >= 21900, api.comm_deregister != nullptr);
  EXPECT_NE(api.comm_init_rank_config, nullptr);
  EXPECT_NE(api.recv, nullptr);
  EXPECT_STREQ(api.get_error_string(ncclSuccess), "no error");
  EXPECT_EQ(api.comm_abort(nullptr), ncclSuccess);
}

TEST(NcclLibrary, WritesVersionsAsPeopleDo) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(23203), "2.32.3");
  EXPECT_EQ(nccl_version_text(21400), "2.14.0");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

void expect_refusal(const std::string& file, const std::string& reason) {
  try {
    load_nccl(file);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with(file + " " + reason)) << text;
  }
}

TEST(NcclLibrary, SaysWhyItCannotBeUsed) {
  expect_refusal("libthere_is_no_such_thing.so.9", "cannot be loaded: ");
  expect_refusal("libm.so.6", "has no ncclGetVersion: ");
}

}  // namespace
}  // namespace mantissa
