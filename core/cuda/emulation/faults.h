// Settings of the emulated GPU for tests: a seed for every order that a GPU leaves open, and faults of kernels. A test
// can also start a test program with a fault in its environment and expect it to fail:
//
//   MANTISSA_EMULATION_FAULT    one fault:
//       skip FILE:LINE          the wait at this place does not wait
//       block KERNEL            the kernel's last block does not run
//       shared BYTES KERNEL     the kernel's blocks get this much less shared memory
//       bound INDEX BY KERNEL   one of the kernel's integer arguments is off by BY
//     Anything else ends the process with kBadFaultExit, before main().
//   MANTISSA_EMULATION_REPORT   a file that is written at exit: a line for each place and kernel that a fault can have
//       wait FILE:LINE
//       kernel BOUNDS SHARED_BYTES KERNEL      BOUNDS: 17,4,1, the largest value of each, or "none"
#pragma once

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
// (launch.h). A bound of 1 or less is not decreased: no work at all, or a division by zero, would be too easy to
// notice.
struct ShiftedBound {
  size_t index = 0;
  int by = 0;
};

// Faults, for tests of their detection. All apply to kernels that run while they are set. Default: the environment's
// MANTISSA_EMULATION_FAULT, else none.
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

// A kernel, named by its launch site and its parameter types. The types distinguish the kernels of a function template.
struct Kernel {
  std::string name;
  std::vector<int64_t> bounds;  // the largest value that each of its integer arguments had
  size_t shared_bytes = 0;      // the most that a launch requested
};

// The kernels that have run since the process started, each once.
const std::vector<Kernel>& kernels();
void note_kernel(const Kernel& kernel);

// `function` is the __PRETTY_FUNCTION__ of a template whose arguments are `Parameters`. Leaves out namespaces and
// template arguments: "core/kernels/norm/norm.cu.cc:30 (Cast, long int)".
std::string kernel_name_from(const Site& site, const std::string& function);

template <typename... Parameters>
std::string kernel_name(const Site& site) {
  return kernel_name_from(site, __PRETTY_FUNCTION__);
}

constexpr int kBadFaultExit = 64;  // not the exit status of a test program that found a failure

// Throws std::invalid_argument if `text` is not a fault in the format above.
Faults parse_fault(const std::string& text);

}  // namespace mantissa::cuda::emulation
