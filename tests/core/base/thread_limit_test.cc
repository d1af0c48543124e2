// A system that refuses to start threads causes an error message, not the end of the program.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "core/base/error.h"
#include "core/base/thread_team.h"

namespace mantissa {
namespace {

rlim_t address_space_in_use() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

// Runs in its own process. Every thread takes some megabytes of address space for its stack.
void start_threads_in_little_space() {
  const rlim_t space = address_space_in_use() + (rlim_t{64} << 20);
  const rlimit limit{space, space};
  setrlimit(RLIMIT_AS, &limit);
  set_threads(200);
  try {
    parallel_for(400, [](int64_t) {});
  } catch (const ConfigError& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(static_cast<int>(error.code()));
  }
  std::_Exit(0);
}

TEST(ThreadLimit, ThreadsThatCannotBeStartedAreAnError) {
  EXPECT_EXIT(start_threads_in_little_space(), ::testing::ExitedWithCode(2),
              "thread [0-9]+ of 200 cannot be started: .*; give a smaller train.threads");
}

}  // namespace
}  // namespace mantissa
