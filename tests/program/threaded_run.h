// A small run whose ranks are threads of one process: for matrices of resumes and bits, which need no start of the
// program and no mpirun.
#pragma once

#include <functional>

#include "tests/program/program.h"
#include "tools/config/config.h"

namespace mantissa::testing {

class ThreadedRun final : public SmallRun {
 public:
  using SmallRun::SmallRun;

  // Changes the configurations of later trainings, after they are read: for settings that have no key.
  ThreadedRun& adjusted(std::function<void(Config&)> adjust) {
    adjust_ = std::move(adjust);
    return *this;
  }
  // Trains in a child process, as `mantissa train` does. The exit code is that of the first rank that failed.
  Outcome try_train(int ranks, std::vector<std::string> settings) const override;

 private:
  std::function<void(Config&)> adjust_ = [](Config&) {};
};

}  // namespace mantissa::testing
