// The host's view of a GPU: memory, models, timers and ranges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "core/backend/registry.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/device_models.h"
#include "core/cuda/emulation/stream_queue.h"
#include "core/cuda/stream.h"
#include "core/cuda/usable_device.h"
#include "core/kernels/gemm/args.h"
#include "tests/core/profile/recorded_ranges.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

// ---- Accounting of device memory, and memory that is allocated and freed in stream order.

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
      "MiB, moments 1.0 MiB. Lower train.micro_batch or model sizes, give train.recompute=full, or use more ranks";
  try {
    memory_->allocate(5 * kMib, "step arena");
    FAIL() << "there is no room";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), expected);
    EXPECT_EQ(error.code(), ExitCode::kMemory);
  }
  EXPECT_EQ(memory_->held_bytes(), device_bytes_ - 2 * kMib) << "a refused request holds nothing";
}

TEST_F(DeviceMemoryTest, AShortageOfAKernelsWorkspaceNamesTheKernel) {
  const auto weights = memory_->allocate(device_bytes_ - kMib / 2, "weights");
  EXPECT_THAT(error_of([&] { stream_.workspace(1000, "column_sum"); }),
              HasSubstr("'workspace of column_sum' needs 1.0 MiB"));
  EXPECT_THAT(error_of([&] { stream_.gemm_workspace(); }), HasSubstr("'GEMM workspace' needs 32.0 MiB"));
}

// The sanitizer would report a write to memory that was freed too early.
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

TEST(DeviceChoice, CodeRunsOnItsMajorVersionAndUpwards) {
  EXPECT_TRUE(runs_on("sm_80", 8, 0));
  EXPECT_TRUE(runs_on("sm_80", 8, 6));
  EXPECT_FALSE(runs_on("sm_89", 8, 6));
  EXPECT_FALSE(runs_on("sm_80", 9, 0));
  EXPECT_TRUE(runs_on("sm_90a", 9, 0));
  EXPECT_FALSE(runs_on("sm_100a", 10, 3));
}

TEST(DeviceChoice, TheAdviceIsABuildThatExists) {
  EXPECT_EQ(build_advice(8, 6), "build with --//tools/build:cuda_archs=sm_80");
  EXPECT_EQ(build_advice(9, 0), "build with --//tools/build:cuda_archs=sm_90a");
  EXPECT_EQ(build_advice(10, 0), "build with --//tools/build:cuda_archs=sm_100a");
  EXPECT_EQ(build_advice(7, 5),
            "a build can hold code for sm_80, sm_89, sm_90a, sm_100a only, none of which runs on it");
}

TEST(DatasheetPeaks, FormsOfAGpuAreToldApart) {
  EXPECT_EQ(datasheet_peaks("NVIDIA H100 80GB HBM3")->half, 989.4e12);
  EXPECT_EQ(datasheet_peaks("NVIDIA H100 PCIe")->half, 756.5e12);
  EXPECT_EQ(datasheet_peaks("NVIDIA H200")->tf32, 494.5e12);
  EXPECT_EQ(datasheet_peaks("NVIDIA H200 NVL")->tf32, 417.5e12);
}

TEST(DatasheetPeaks, UnknownGpusHaveNone) {
  for (const char* name :
       {"", "H100", "NVIDIA GB200", "NVIDIA GeForce RTX 4090 D", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}) {
    EXPECT_FALSE(datasheet_peaks(name)) << name;
  }
}

TEST(DatasheetPeaks, TensorCoresTakeSixteenBitsAndTf32) {
  const char* const h100 = "NVIDIA H100 80GB HBM3";
  EXPECT_EQ(datasheet_flops(h100, DType::kBF16, Fp32Math::kFull), 989.4e12);
  EXPECT_EQ(datasheet_flops(h100, DType::kF16, Fp32Math::kTf32), 989.4e12);
  EXPECT_EQ(datasheet_flops(h100, DType::kF32, Fp32Math::kTf32), 494.7e12);
  EXPECT_FALSE(datasheet_flops(h100, DType::kF32, Fp32Math::kFull));
  EXPECT_EQ(datasheet_flops(h100, DType::kU8, Fp32Math::kFull), 1978.9e12);
  EXPECT_FALSE(datasheet_flops("NVIDIA A100-SXM4-80GB", DType::kU8, Fp32Math::kFull)) << "it multiplies no codes";
  EXPECT_FALSE(datasheet_flops("another GPU", DType::kBF16, Fp32Math::kFull));
}

// ---- The timers of the CPU and of the emulated GPU.

constexpr std::chrono::milliseconds kLong{20};

// Each backend with work that takes kLong.
struct TimedBackend {
  const char* name;
  void (*work)(Stream& stream);
};
void sleep(Stream&) { std::this_thread::sleep_for(kLong); }
void occupy_emulated_gpu(Stream& stream) {
  cuda::emulation::enqueue(cuda::as_cuda(stream).handle(), [] { cuda::emulation::take_time(kLong.count()); });
}

class StreamTimerOf : public ::testing::TestWithParam<TimedBackend> {};

TEST_P(StreamTimerOf, MarksAreInTheOrderOfTheStream) {
  const auto backend = create_backend(GetParam().name);
  const auto stream = backend->create_stream();
  const auto timer = find_backend(GetParam().name).create_timer(*stream);
  const Tensor a = backend->make_tensor(DType::kF32, {1 << 16}, "a");
  EXPECT_EQ(timer->mark(), 0u);
  backend->fill(a, 1.0f, *stream);
  EXPECT_EQ(timer->mark(), 1u);
  GetParam().work(*stream);
  EXPECT_EQ(timer->mark(), 2u);
  EXPECT_GE(timer->milliseconds(0, 1), 0.0);
  EXPECT_GE(timer->milliseconds(1, 2), 0.99 * static_cast<double>(kLong.count()));
  EXPECT_NEAR(timer->milliseconds(0, 2), timer->milliseconds(0, 1) + timer->milliseconds(1, 2), 1e-2);
  EXPECT_THROW(timer->milliseconds(0, 3), ContractError);
}

INSTANTIATE_TEST_SUITE_P(Backend, StreamTimerOf,
                         ::testing::Values(TimedBackend{"cpu", sleep}, TimedBackend{"cuda", occupy_emulated_gpu}),
                         [](const auto& info) { return info.param.name; });

TEST(CudaBackend, EachCallIsARangeOfItsName) {
  const auto backend = create_backend("cuda");
  const auto stream = backend->create_stream();
  const Tensor a = backend->make_tensor(DType::kF32, {4, 4}, "a"), b = backend->make_tensor(DType::kF32, {4, 4}, "b");
  std::vector<float> values(16);
  const testing::RecordedRanges ranges;
  backend->fill(a, 1.0f, *stream);
  backend->run(GemmArgs{.a = a, .b = a, .c = b}, *stream);
  backend->download(b, values.data(), *stream);
  EXPECT_EQ(ranges.events(), (std::vector<std::string>{"begin op fill", "end op fill", "begin op gemm", "end op gemm",
                                                       "begin op download", "end op download"}));
}

}  // namespace
}  // namespace mantissa::cuda
