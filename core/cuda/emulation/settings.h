// Settings of the emulated GPU for tests: a seed for every order that a GPU leaves open, and faults that a kernel might
// have.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mantissa::cuda::emulation {

// A place in the source.
struct Site {
  const char* file = "";
  int line = 0;
  // Compares text: the name of one header may have several addresses.
  bool operator==(const Site& other) const;
  std::string text() const;  // "softmax.cu.cc:57"
};

// The order of blocks, of the threads in a block and of streams is drawn from this seed. Default: the environment's
// MANTISSA_EMULATION_SEED, else 1.
void set_seed(uint64_t seed);
uint64_t seed();

// A bound that is off by `by`: the integer number `index` among the kernel's arguments, fields of structs included
// (bounds.h). A bound of 1 or less is not decreased: no work at all, or a division by zero, would be too easy to
// notice.
struct ShiftedBound {
  size_t index = 0;
  int by = 0;
};

// Faults, for tests that show that such a fault is detected. All apply to kernels that run while they are set. Default:
// the environment's MANTISSA_EMULATION_FAULT (fault_text.h), else none.
struct Faults {
  std::optional<Site> skipped_wait = {};  // the barrier, warp exchange or copy wait at this place does not wait
  std::string kernel = {};                // name of the kernel that has the following faults; empty: all kernels
  size_t missing_shared_bytes = 0;        // every block gets this much less shared memory than its launch requested
  bool missing_last_block = false;        // the last block of a grid does not run
  std::optional<ShiftedBound> shifted_bound = {};

  bool concern(const std::string& kernel_name) const { return kernel.empty() || kernel == kernel_name; }
};
void set_faults(const Faults& faults);
const Faults& faults();

// The places of waits since the last call, each once, in order of appearance.
std::vector<Site> take_wait_sites();
void note_wait_site(const Site& site);

// A kernel, named by its launch site and its parameter types without template arguments.
struct Kernel {
  std::string name;
  std::vector<int64_t> bounds;  // the largest value that each of its integer arguments had
  size_t shared_bytes = 0;      // the most that a launch requested
};

// The kernels that have run since the process began, each once.
const std::vector<Kernel>& kernels();
void note_kernel(const Kernel& kernel);

}  // namespace mantissa::cuda::emulation
