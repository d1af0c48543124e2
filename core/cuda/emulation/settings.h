// What a test can choose about the emulated GPU: the order of everything that a GPU leaves open, and faults that a
// kernel might have.
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
  // By text: one header's name may have several addresses.
  bool operator==(const Site& other) const;
  std::string text() const;  // "softmax.cu.cc:57"
};

// The order of blocks, of the threads in a block and of streams is drawn from this seed. Default: the environment's
// MANTISSA_EMULATION_SEED, else 1.
void set_seed(uint64_t seed);
uint64_t seed();

// A bound that is off by some: the integer number `index` among the kernel's arguments, those of structs included
// (bounds.h). It is not decreased to zero: nothing to do, or a division by zero, would be no art to notice.
struct ShiftedBound {
  size_t index = 0;
  int by = 0;
};

// Faults, for tests which show that such a fault is caught. All apply to kernels that run while they are set. Default:
// the environment's MANTISSA_EMULATION_FAULT (fault_text.h), else none.
struct Faults {
  std::optional<Site> skipped_wait = {};  // the barrier, warp exchange or copy wait at this place does not wait
  std::string kernel = {};                // the name of the one that has the following faults; empty: all have them
  size_t missing_shared_bytes = 0;        // every block gets this much less shared memory than it was launched with
  bool missing_last_block = false;        // the last block of a grid does not run
  std::optional<ShiftedBound> shifted_bound = {};

  bool concern(const std::string& kernel_name) const { return kernel.empty() || kernel == kernel_name; }
};
void set_faults(const Faults& faults);
const Faults& faults();

// The places that have been waited at since the last call, each once, in order of appearance.
std::vector<Site> take_wait_sites();
void note_wait_site(const Site& site);

// A kernel by the place of its launch and the types of its parameters, without the arguments of templates.
struct Kernel {
  std::string name;
  std::vector<int64_t> bounds;  // the integers among its arguments: the largest value that each had
  size_t shared_bytes = 0;      // the most that it was launched with
};

// The kernels that have run since the process began, each once.
const std::vector<Kernel>& kernels();
void note_kernel(const Kernel& kernel);

}  // namespace mantissa::cuda::emulation
