// Blocks of emulated kernels, and faults of kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <stdexcept>
#include <vector>

#include "core/cuda/device/device.h"
#include "core/cuda/emulation/faults.h"
#include "tests/core/cuda/emulated_stream.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

// ---- The emulated execution model: blocks, threads, barriers, warps, shared memory. It must catch faults in their
// use.

using mantissa::testing::error_of;

constexpr uint64_t kSeeds = 8;

// Runs `body` with several seeds.
void with_seeds(const std::function<void()>& body) {
  const uint64_t usual = emulation::seed();
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    emulation::set_seed(seed);
    body();
  }
  emulation::set_seed(usual);
}

class EmulatedBlock : public EmulatedStream {};

__global__ void write_index(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * threads + thread] += static_cast<int>(block * threads + thread);
}

TEST_F(EmulatedBlock, RunsEveryThreadOfEveryBlockOnce) {
  with_seeds([&] {
    std::vector<int> out(3 * 2 * 2 * 5 * 3 * 2);
    run(write_index, {.grid = {3, 2, 2}, .block = {5, 3, 2}}, out.data());
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<int>(i));
  });
}

__global__ void note_order(std::vector<int>* order) { order->push_back(static_cast<int>(threadIdx.x)); }

TEST_F(EmulatedBlock, DrawsTheOrderOfThreadsFromTheSeed) {
  std::set<std::vector<int>> orders;
  with_seeds([&] {
    std::vector<int> order;
    run(note_order, {.grid = 1, .block = 64}, &order);
    orders.insert(order);
  });
  EXPECT_EQ(orders.size(), kSeeds);
}

// out[i] = sum of in, by a tree in shared memory.
__global__ void tree_sum(const float* in, float* out) {
  float* partial = shared_memory<float>();
  partial[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  out[threadIdx.x] = partial[0];
}

TEST_F(EmulatedBlock, BarriersOrderSharedMemoryAndAMissingOneShows) {
  constexpr unsigned kThreads = 128;
  std::vector<float> in(kThreads), out(kThreads);
  for (unsigned i = 0; i < kThreads; ++i) in[i] = static_cast<float>(i);
  const LaunchShape shape{.grid = 1, .block = kThreads, .shared_bytes = kThreads * sizeof(float)};
  const auto all_right = [&] {
    out.assign(kThreads, -1.0f);
    run(tree_sum, shape, static_cast<const float*>(in.data()), out.data());
    for (const float value : out) {
      if (value != 127.0f * 64.0f) return false;
    }
    return true;
  };
  emulation::take_wait_sites();
  with_seeds([&] { EXPECT_TRUE(all_right()); });
  const std::vector<emulation::Site> barriers = emulation::take_wait_sites();
  ASSERT_EQ(barriers.size(), 2u);
  for (const emulation::Site& barrier : barriers) {
    emulation::set_faults({.skipped_wait = barrier});
    uint64_t noticed = 0;
    with_seeds([&] { noticed += all_right() ? 0 : 1; });
    EXPECT_GE(noticed, kSeeds / 2) << barrier.text();  // some thread orders do no harm
  }
}

__global__ void barrier_for_half() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncwarp(0x1u << threadIdx.x % 32 | 0x1u);  // waits for lane 0, which does not wait for it
  }
}

TEST_F(EmulatedBlock, ReportsWhoWaitsWhereInADeadlock) {
  const std::string message = error_of([&] { run(barrier_for_half, {.grid = 1, .block = 64}); });
  EXPECT_NE(message.find("deadlock: 1 of 64 threads have returned"), std::string::npos) << message;
  EXPECT_NE(message.find("at the barrier in emulation_test.cc:"), std::string::npos) << message;
}

__global__ void two_barriers() {
  if (threadIdx.x % 2 == 0) {  // NOLINT(bugprone-branch-clone): two places in the source are the point
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(EmulatedBlock, RefusesOneBarrierAtTwoPlaces) {
  const std::string message = error_of([&] { run(two_barriers, {.grid = 1, .block = 64}); });
  EXPECT_NE(message.find("threads of one block wait at different barriers"), std::string::npos) << message;
}

__global__ void return_early(int* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

TEST_F(EmulatedBlock, BarriersDoNotWaitForThreadsThatHaveReturned) {
  with_seeds([&] {
    std::vector<int> out(64);
    run(return_early, {.grid = 1, .block = 64}, out.data());
    for (int i = 0; i < 64; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], i < 40);
  });
}

__global__ void shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32, value = static_cast<int>(threadIdx.x);
  out[threadIdx.x * 5 + 0] = __shfl_sync(kAllLanes, value, 5);
  out[threadIdx.x * 5 + 1] = __shfl_xor_sync(kAllLanes, value, 3);
  out[threadIdx.x * 5 + 2] = __shfl_up_sync(kAllLanes, value, 2);
  out[threadIdx.x * 5 + 3] = static_cast<int>(__ballot_sync(kAllLanes, lane % 3 == 0));
  out[threadIdx.x * 5 + 4] = __shfl_sync(kAllLanes, value, 1, 8);
}

TEST_F(EmulatedBlock, ShufflesAndVotesWithinAWarp) {
  with_seeds([&] {
    std::vector<int> out(64 * 5);
    run(shuffles, {.grid = 1, .block = 64}, out.data());
    for (int thread = 0; thread < 64; ++thread) {
      const int lane = thread % 32, first = thread - lane;
      const int* got = &out[static_cast<size_t>(thread) * 5];
      EXPECT_EQ(got[0], first + 5);
      EXPECT_EQ(got[1], first + (lane ^ 3));
      EXPECT_EQ(got[2], lane >= 2 ? thread - 2 : thread);
      EXPECT_EQ(static_cast<unsigned>(got[3]), 0x49249249u);
      EXPECT_EQ(got[4], first + lane / 8 * 8 + 1);
    }
  });
}

__global__ void sum_and_maximum(const float* in, float* out) {
  float* scratch = shared_memory<float>();
  out[threadIdx.x * 2] = block_reduce(in[threadIdx.x], Sum{}, scratch);
  out[threadIdx.x * 2 + 1] = block_reduce(in[threadIdx.x], Max{}, scratch);
}

TEST_F(EmulatedBlock, ReducesOverABlock) {
  std::vector<float> in(96), out(192);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  const LaunchShape shape{.grid = 1, .block = 96, .shared_bytes = 3 * sizeof(float)};
  with_seeds([&] {
    run(sum_and_maximum, shape, static_cast<const float*>(in.data()), out.data());
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(out[2 * i], 95.0f * 48.0f);
      EXPECT_EQ(out[2 * i + 1], 95.0f);
    }
  });
  in[70] = NAN;
  run(sum_and_maximum, shape, static_cast<const float*>(in.data()), out.data());
  EXPECT_TRUE(std::isnan(out[1]));
}

__global__ void read_shared(float* out) { out[threadIdx.x] = shared_memory<float>()[threadIdx.x]; }

TEST_F(EmulatedBlock, SharedMemoryStartsOutAsNan) {
  std::vector<float> out(32);
  run(read_shared, {.grid = 1, .block = 32, .shared_bytes = 32 * sizeof(float)}, out.data());
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

__global__ void count(int* counter, unsigned long long* largest) {
  atomicAdd(counter, 1);
  atomicMax(largest, static_cast<unsigned long long>(threadIdx.x));
}

TEST_F(EmulatedBlock, CountsAtomically) {
  int counter = 0;
  unsigned long long largest = 0;
  run(count, {.grid = 3, .block = 70}, &counter, &largest);
  EXPECT_EQ(counter, 210);
  EXPECT_EQ(largest, 69u);
}

TEST_F(EmulatedBlock, RefusesWhatAGpuRefuses) {
  std::vector<int> out(1);
  const auto refused = [&](const LaunchShape& shape) { return error_of([&] { run(write_index, shape, out.data()); }); };
  EXPECT_NE(refused({.grid = 0, .block = 1}).find("at least one block"), std::string::npos);
  EXPECT_NE(refused({.grid = 1, .block = 1025}).find("at most 1024 threads"), std::string::npos);
  EXPECT_NE(refused({.grid = {1, 65536}, .block = 1}).find("a grid is at most"), std::string::npos);
  EXPECT_NE(refused({.grid = 1, .block = 1, .shared_bytes = 300000}).find("bytes of shared memory"), std::string::npos);
}

TEST_F(EmulatedBlock, LeavesOutTheLastBlockOnRequest) {
  std::vector<int> out(8, -1);
  emulation::set_faults({.missing_last_block = true});
  run(write_index, {.grid = 4, .block = 2}, out.data());
  EXPECT_EQ(out[5], 4);
  EXPECT_EQ(out[6], -1);
}

// ---- Faults that a test seeds: their effect on a kernel, how they are named, and the end of shared memory.

struct Extents {
  int64_t rows;
  float scale;
  uint32_t columns;
};

struct Operands {
  int* out;
  Extents extents;
};

__global__ void note_bounds(Operands operands, int64_t offset) {
  operands.out[0] = static_cast<int>(operands.extents.rows);
  operands.out[1] = static_cast<int>(operands.extents.columns);
  operands.out[2] = static_cast<int>(offset);
}

__global__ void write_shared(unsigned index) { shared_memory<float>()[index] = 1.0f; }

class EmulatedFaults : public ::testing::Test {
 protected:
  EmulatedFaults() : stream_(create_stream()) {}
  ~EmulatedFaults() override {
    emulation::set_faults({});
    destroy_stream(stream_);
  }

  std::vector<int> bounds() {
    std::vector<int> out(3);
    launch(note_bounds, {.grid = 1, .block = 1}, stream_,
           Operands{out.data(), {.rows = 5, .scale = 1.0f, .columns = 1}}, int64_t{0});
    synchronize(stream_);
    return out;
  }

  // Writes element `index` of shared memory that has `elements`.
  void write_at(unsigned index, size_t elements) {
    launch(write_shared, {.grid = 1, .block = 1, .shared_bytes = elements * sizeof(float)}, stream_, index);
    synchronize(stream_);
  }

  const emulation::Kernel& last_kernel() const { return emulation::kernels().back(); }

  StreamHandle stream_;
};

TEST_F(EmulatedFaults, OneBoundIsShiftedAlsoWithinAStruct) {
  EXPECT_EQ(bounds(), (std::vector<int>{5, 1, 0}));
  emulation::set_faults({.shifted_bound = {{.index = 0, .by = -1}}});
  EXPECT_EQ(bounds(), (std::vector<int>{4, 1, 0}));
  emulation::set_faults({.shifted_bound = {{.index = 1, .by = 1}}});
  EXPECT_EQ(bounds(), (std::vector<int>{5, 2, 0}));
  emulation::set_faults({.shifted_bound = {{.index = 2, .by = 1}}});
  EXPECT_EQ(bounds(), (std::vector<int>{5, 1, 1}));
}

TEST_F(EmulatedFaults, NoBoundIsDecreasedToZero) {
  for (const size_t index : {1u, 2u}) {
    emulation::set_faults({.shifted_bound = {{.index = index, .by = -1}}});
    EXPECT_EQ(bounds(), (std::vector<int>{5, 1, 0}));
  }
}

TEST_F(EmulatedFaults, AKernelHasANameAndItsOwnFaults) {
  bounds();
  const emulation::Kernel kernel = last_kernel();
  EXPECT_NE(kernel.name.find("emulation_test.cc:"), std::string::npos) << kernel.name;
  EXPECT_TRUE(kernel.name.ends_with(" (Operands, long int)")) << kernel.name;
  EXPECT_EQ(kernel.bounds, (std::vector<int64_t>{5, 1, 0}));
  emulation::set_faults({.kernel = "another", .shifted_bound = {{.index = 0, .by = 1}}});
  EXPECT_EQ(bounds()[0], 5);
  emulation::set_faults({.kernel = kernel.name, .shifted_bound = {{.index = 0, .by = 1}}});
  EXPECT_EQ(bounds()[0], 6);
}

TEST_F(EmulatedFaults, SharedMemoryHasAnEnd) {
  write_at(63, 64);
  write_at(60, 61);
  EXPECT_DEATH(write_at(64, 64), "");
  EXPECT_DEATH(write_at(0, 0), "");
}

// 61 floats end between multiples of 16 bytes: the three floats up to the next multiple are watched too.
#ifdef __SANITIZE_ADDRESS__
TEST_F(EmulatedFaults, AddressSanitizerSeesTheLastBytes) { EXPECT_DEATH(write_at(61, 61), "use-after-poison"); }
#else
TEST_F(EmulatedFaults, AWriteToTheLastBytesIsAnError) {
  const std::string message = error_of([&] { write_at(61, 61); });
  EXPECT_NE(message.find("a write beyond 244 bytes of shared memory"), std::string::npos) << message;
}
#endif

TEST_F(EmulatedFaults, SharedMemoryIsTooShortOnRequest) {
  write_at(12, 16);
  emulation::set_faults({.missing_shared_bytes = 16});
  EXPECT_DEATH(write_at(12, 16), "");
}

TEST(FaultText, IsReadBack) {
  const emulation::Faults skip = emulation::parse_fault("skip core/cuda/device/reduce.h:39");
  ASSERT_TRUE(skip.skipped_wait.has_value());
  EXPECT_EQ(skip.skipped_wait->text(), "reduce.h:39");
  EXPECT_STREQ(skip.skipped_wait->file, "core/cuda/device/reduce.h");
  const emulation::Faults block = emulation::parse_fault("block a.cc:3 (Sum, long int)");
  EXPECT_TRUE(block.missing_last_block);
  EXPECT_EQ(block.kernel, "a.cc:3 (Sum, long int)");
  const emulation::Faults shared = emulation::parse_fault("shared 4 a.cc:3 (Sum)");
  EXPECT_EQ(shared.missing_shared_bytes, 4u);
  EXPECT_EQ(shared.kernel, "a.cc:3 (Sum)");
  const emulation::Faults bound = emulation::parse_fault("bound 2 -1 a.cc:3 (Sum)");
  ASSERT_TRUE(bound.shifted_bound.has_value());
  EXPECT_EQ(bound.shifted_bound->index, 2u);
  EXPECT_EQ(bound.shifted_bound->by, -1);
  EXPECT_EQ(bound.kernel, "a.cc:3 (Sum)");
}

TEST(FaultText, WhatIsNoFaultIsAnError) {
  for (const char* text :
       {"", "skip", "skip reduce.h", "skip reduce.h:x", "skip reduce.h:3 more", "block", "shared a.cc:3",
        "shared 0 a.cc:3 (A)", "bound 1 a.cc:3 (A)", "bound 1 0 a.cc:3 (A)", "bound 1 -1", "jump a.cc:3"}) {
    EXPECT_THROW(emulation::parse_fault(text), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace mantissa::cuda
