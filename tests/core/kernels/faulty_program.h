// Runs a test program in its own process, with a fault of the emulated GPU in its environment.
#pragma once

#include <string>
#include <vector>

namespace mantissa::kernel_test {

enum class Ending : uint8_t {
  kPassed,
  kFailedCheck,  // an expectation failed, or an error
  kCrashed,      // mostly caught by guarded memory
  kHung,         // took far longer than without the fault
};

struct Outcome {
  Ending ending;
  std::string output;
  double seconds;  // of CPU
};

struct RunOptions {
  std::string test;         // GoogleTest's name of the test
  std::string fault = {};   // MANTISSA_EMULATION_FAULT, see core/cuda/emulation/faults.h
  std::string report = {};  // MANTISSA_EMULATION_REPORT
  int seed = 1;
  double usual_seconds = 0.0;  // its time without a fault
};

class FaultyProgram {
 public:
  explicit FaultyProgram(std::string path) : path_(std::move(path)) {}

  // The tests from source files whose path contains `folder`.
  std::vector<std::string> tests(const std::string& folder) const;
  // Stops at the first check that fails. Throws std::runtime_error if the process cannot start.
  Outcome run(const RunOptions& options) const;

 private:
  const std::string path_;
};

}  // namespace mantissa::kernel_test
