// Runs without a start of the program: ranks are threads of a forked process. For matrices of resumes and bits, and
// wherever neither mpirun nor signals matter.
#pragma once

#include <functional>

#include "tests/program/program.h"
#include "tools/config/config.h"

namespace mantissa::testing {

// `mantissa ARGUMENTS` on one rank, in a child process.
Outcome run_verb(const std::vector<std::string>& arguments);

enum class Ranks : uint8_t { kThreads, kProcesses };

class ThreadedRun final : public SmallRun {
 public:
  // kProcesses: for a case of a matrix on which mpirun starts the program.
  explicit ThreadedRun(const std::string& name, Ranks ranks = Ranks::kThreads) : SmallRun(name), ranks_(ranks) {}

  // Changes the configurations of later trainings, after they are read: for settings that have no key. Each rank calls
  // it for its own.
  ThreadedRun& adjusted(std::function<void(Config&)> adjust) {
    adjust_ = std::move(adjust);
    return *this;
  }
  // Trains in a child process, as `mantissa train` does. An error of a rank ends it with its code. Several ranks
  // share no memory of a node, and have no watchdog; commands in the output name the test, not the program.
  Outcome try_train(int ranks, std::vector<std::string> settings) const override;

 private:
  Ranks ranks_;
  std::function<void(Config&)> adjust_;
};

}  // namespace mantissa::testing
