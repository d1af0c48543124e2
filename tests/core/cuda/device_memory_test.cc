// The account of device memory, and memory that is taken and given back in the order of a stream.
#include "core/cuda/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/cuda/emulation/stream_queue.h"
#include "core/cuda/stream.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using mantissa::testing::error_of;
using ::testing::HasSubstr;

constexpr size_t kMib = size_t{1} << 20;

class DeviceMemoryTest : public ::testing::Test {
 protected:
  const size_t device_bytes_ = device_properties(0).total_bytes;
  const std::shared_ptr<DeviceMemory> memory_ = std::make_shared<DeviceMemory>(0);
  CudaStream stream_{memory_, device_properties(0)};
};

TEST_F(DeviceMemoryTest, CountsWhatIsHeldAndTheMostThatWas) {
  auto first = memory_->allocate(3 * kMib, "weights");
  auto second = stream_.allocate_scratch(2 * kMib, "scratch");
  EXPECT_EQ(memory_->held_bytes(), 5 * kMib);
  first.reset();
  EXPECT_EQ(memory_->held_bytes(), 2 * kMib);
  second.reset();
  EXPECT_EQ(memory_->held_bytes(), 0u);
  memory_->allocate(kMib, "weights");
  EXPECT_EQ(memory_->peak_bytes(), 5 * kMib);
}

TEST_F(DeviceMemoryTest, AShortageNamesWhoAsksHowMuchAndWhoHoldsTheRest) {
  const auto weights = memory_->allocate(device_bytes_ - 3 * kMib, "weights");
  const auto moments = memory_->allocate(kMib, "moments");
  const std::string expected =
      "[cuda] GPU 0 is out of memory: 'step arena' needs 5.0 MiB, 2.0 of 8192.0 MiB are free; held here: weights "
      "8189.0 "
      "MiB, moments 1.0 MiB. Lower train.micro_batch or model sizes, or use more ranks";
  try {
    memory_->allocate(5 * kMib, "step arena");
    FAIL() << "there is no room";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), expected);
    EXPECT_EQ(error.code(), ExitCode::kConfig);
  }
  EXPECT_EQ(memory_->held_bytes(), device_bytes_ - 2 * kMib) << "a refused request holds nothing";
}

TEST_F(DeviceMemoryTest, AShortageOfAKernelsWorkspaceNamesTheKernel) {
  const auto weights = memory_->allocate(device_bytes_ - kMib / 2, "weights");
  EXPECT_THAT(error_of([&] { stream_.workspace(1000, "column_sum"); }),
              HasSubstr("'workspace of column_sum' needs 1.0 MiB"));
  EXPECT_THAT(error_of([&] { stream_.gemm_workspace(); }), HasSubstr("'GEMM workspace' needs 32.0 MiB"));
}

// The sanitizer would see a write to memory that went too early.
TEST_F(DeviceMemoryTest, ScratchOutlivesTheWorkThatWasGivenBefore) {
  for (int round = 0; round < 20; ++round) {
    const auto scratch = stream_.allocate_scratch(64, "scratch");
    for (int i = 0; i < 5; ++i) set_bytes_async(scratch->data(), i, 64, stream_.handle());
  }
  EXPECT_LT(memory_info().free_bytes, device_bytes_) << "nobody waited";
  stream_.synchronize();
  EXPECT_EQ(memory_info().free_bytes, device_bytes_);
}

TEST_F(DeviceMemoryTest, ScratchIsNotToBeHadInACapture) {
  begin_capture(stream_.handle());
  EXPECT_EQ(error_of([&] { stream_.allocate_scratch(64, "scratch"); }),
            "[allocate_from_pool] not permitted while a stream is captured");
  EXPECT_NE(error_of([&] { end_capture(stream_.handle()); }), "");
  EXPECT_EQ(memory_->held_bytes(), 0u);
}

TEST_F(DeviceMemoryTest, AnOutgrownWorkspaceGoesUnlessAGraphNamesIt) {
  stream_.workspace(kMib);
  stream_.workspace(2 * kMib);
  EXPECT_EQ(memory_->held_bytes(), 2 * kMib);
  begin_capture(stream_.handle());
  std::byte* const named = stream_.workspace(2 * kMib);
  set_bytes_async(named, 7, 1, stream_.handle());
  const GraphHandle graph = end_capture(stream_.handle());
  EXPECT_NE(stream_.workspace(3 * kMib), named);
  EXPECT_EQ(memory_->held_bytes(), 5 * kMib);
  launch_graph(graph, stream_.handle());
  stream_.synchronize();
  EXPECT_EQ(*named, std::byte{7});
  stream_.workspace(4 * kMib);
  EXPECT_EQ(memory_->held_bytes(), 6 * kMib) << "no graph names the one of 3 MiB";
  destroy_graph(graph);
}

TEST_F(DeviceMemoryTest, WhatAStreamHeldGoesWithIt) {
  {
    CudaStream other(memory_, device_properties(0));
    other.workspace(kMib);
    other.gemm_workspace();
    EXPECT_EQ(memory_->held_bytes(), 33 * kMib);
  }
  EXPECT_EQ(memory_->held_bytes(), 0u);
  stream_.synchronize();
  EXPECT_EQ(memory_info().free_bytes, device_bytes_);
}

TEST_F(DeviceMemoryTest, AShortageWaitsForWhatStreamsHaveGivenBack) {
  stream_.allocate_scratch(device_bytes_ - kMib, "scratch");
  EXPECT_LT(memory_info().free_bytes, 2 * kMib) << "given back to the pool, and not to the device";
  EXPECT_EQ(memory_->allocate(device_bytes_ - kMib, "weights")->bytes(), device_bytes_ - kMib);
}

}  // namespace
}  // namespace mantissa::cuda
