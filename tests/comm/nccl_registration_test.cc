// Buffers that NCCL is told of.
#include <gtest/gtest.h>

#include "tests/comm/nccl_ranks.h"

namespace mantissa {
namespace {

using namespace std::chrono_literals;
using testing::failure_of;
using testing::kSharingVersion;
using testing::NcclTest;
using testing::OneRank;

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

}  // namespace
}  // namespace mantissa
