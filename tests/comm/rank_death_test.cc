// A rank dies while others wait for its data in shared memory. That memory cannot tell them, but the launcher ends the
// job.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tests/tools/train/program.h"

namespace mantissa {
namespace {

constexpr int kRanks = 3;

// The rest of each line that begins with `word`.
std::set<std::string> said_after(const std::string& word, const std::string& output) {
  std::set<std::string> found;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(word + " ")) found.insert(line.substr(word.size() + 1));
  }
  return found;
}

// An ended process stays in the table until its status is read.
bool runs(const std::string& process) {
  const std::string status = testing::read_file("/proc/" + process + "/stat");
  const size_t name_end = status.rfind(") ");
  return name_end != std::string::npos && status[name_end + 2] != 'Z' && status[name_end + 2] != 'X';
}

// The launcher may exit shortly before the processes that it killed.
bool becomes_true(const std::function<bool()>& condition) {
  for (int tenth = 0; tenth < 100; ++tenth) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return condition();
}

TEST(RankDeath, InAnExchangeThroughSharedMemoryEndsTheJobAndLeavesNothing) {
  const testing::Outcome outcome = testing::run_under_mpirun(kRanks, "tests/comm/mpi_ranks die");
  SCOPED_TRACE(outcome.output);
  EXPECT_NE(outcome.exit_code, 0);
  ASSERT_EQ(said_after("rank 1 dies:", outcome.output).size(), 1u);
  EXPECT_EQ(outcome.output.find("the sum is complete"), std::string::npos);
  const auto processes = said_after("process", outcome.output);
  EXPECT_EQ(processes.size(), static_cast<size_t>(kRanks));
  for (const std::string& process : processes) {
    EXPECT_TRUE(becomes_true([&] { return !runs(process); })) << "process " << process << " still runs";
  }
  for (const std::string& path : said_after("maps", outcome.output)) {
    EXPECT_TRUE(becomes_true([&] { return !std::filesystem::exists(path); })) << path << " is left";
  }
}

}  // namespace
}  // namespace mantissa
