// A test program in a process of its own, with a fault of the emulated GPU in its environment.
#pragma once

#include <string>
#include <vector>

namespace mantissa::kernel_test {

enum class Ending : uint8_t {
  kPassed,
  kFailedCheck,  // an expectation, or an error
  kCrashed,      // mostly by guarded memory
  kHung,         // ran far longer than without the fault
};

struct Outcome {
  Ending ending;
  std::string output;
  double seconds;  // of CPU
};

struct RunOptions {
  std::string test;         // of the program, as GoogleTest names it
  std::string fault = {};   // MANTISSA_EMULATION_FAULT, see core/cuda/emulation/faults.h
  std::string report = {};  // MANTISSA_EMULATION_REPORT
  int seed = 1;
  double usual_seconds = 0.0;  // its time without a fault
};

class FaultyProgram {
 public:
  explicit FaultyProgram(std::string path) : path_(std::move(path)) {}

  // The tests in source files whose path contains `folder`.
  std::vector<std::string> tests(const std::string& folder) const;
  // Ends at the first check that fails. Throws std::runtime_error if the process cannot run.
  Outcome run(const RunOptions& options) const;

 private:
  const std::string path_;
};

}  // namespace mantissa::kernel_test
