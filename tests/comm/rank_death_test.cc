// Shared memory of a node when processes die or cannot see each other. A rank dies while others wait for its data in
// shared memory: the memory cannot report the death, but the launcher ends the job.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tests/program/program.h"

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

// A rank took another's segment for its own, since both had process number 1 or 2.
TEST(RankDeath, DoesNotComeFromPidNamespaces) {
  const std::string unshare = geteuid() == 0 ? "unshare --pid --fork " : "unshare --user --map-root-user --pid --fork ";
  const testing::Outcome permitted = testing::run_shell(unshare + "true");
  if (permitted.exit_code != 0) GTEST_SKIP() << "no PID namespaces can be made here: " << permitted.output;
  const std::string ranks = "tests/comm/mpi_ranks sum", warning = "outside of this rank's PID namespace";
  for (const char* proc : {"", "--mount-proc "}) {  // process numbers of the outer namespace, and of the own one
    const std::string namespaces = fmt::format("{}{}", unshare, proc);
    const testing::Outcome each = testing::run_under_mpirun(2, fmt::format("{}{}", namespaces, ranks));
    EXPECT_EQ(each.exit_code, 0) << each.output;
    const size_t first = each.output.find(warning);
    EXPECT_NE(first, std::string::npos) << each.output;
    EXPECT_EQ(each.output.find(warning, first + 1), std::string::npos) << each.output;
    EXPECT_EQ(said_after("maps", each.output).size(), 0u) << each.output;
    const testing::Outcome all = testing::run_shell(fmt::format("{}{}{}", namespaces, testing::mpirun(2), ranks));
    EXPECT_EQ(all.exit_code, 0) << all.output;
    EXPECT_EQ(all.output.find(warning), std::string::npos) << all.output;
    EXPECT_NE(said_after("maps", all.output).size(), 0u) << all.output;
  }
}

}  // namespace
}  // namespace mantissa
