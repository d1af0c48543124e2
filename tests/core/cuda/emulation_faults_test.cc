// Faults that a test seeds: what they do to a kernel, how they are named, and that shared memory has an end.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "core/cuda/device/device.h"
#include "core/cuda/emulation/faults.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using mantissa::testing::error_of;

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

  // Writes one element of shared memory for `elements`.
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
  EXPECT_NE(kernel.name.find("emulation_faults_test.cc:"), std::string::npos) << kernel.name;
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

// The end of 61 floats is no multiple of the 16 bytes which its beginning is: the three floats between are watched too.
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
