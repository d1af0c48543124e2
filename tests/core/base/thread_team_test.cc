#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/host_memory.h"
#include "core/base/thread_team.h"

namespace mantissa {
namespace {

class ThreadTeam : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_threads(GetParam()); }
  void TearDown() override { set_threads(usable_processors()); }
};

// Possibly more threads than processors: the excess threads sleep at once.
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeam, ::testing::Values(1, 2, 3, 17));

TEST_P(ThreadTeam, RunsEachTaskOnce) {
  for (const int64_t tasks : {0, 1, 2, 3, 16, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
    parallel_for(tasks, [&](int64_t task) { runs[static_cast<size_t>(task)].fetch_add(1); });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  }
}

TEST_P(ThreadTeam, SeesWhatTheJobBeforeWrote) {
  // Only the end of a job synchronises: each task reads what others wrote.
  std::vector<int64_t> values(64, 0), next(64);
  for (int job = 0; job < 3000; ++job) {
    parallel_for(64, [&](int64_t task) {
      const auto at = static_cast<size_t>(task);
      next[at] = values[(at + 1) % 64] + 1;
    });
    std::swap(values, next);
  }
  EXPECT_EQ(values, std::vector<int64_t>(64, 3000));
}

TEST_P(ThreadTeam, NumbersItsThreads) {
  EXPECT_EQ(threads(), GetParam());
  EXPECT_EQ(current_thread(), 0);
  std::atomic<bool> in_range = true;
  parallel_for(500, [&](int64_t) {
    if (current_thread() < 0 || current_thread() >= GetParam()) in_range = false;
  });
  EXPECT_TRUE(in_range);
}

TEST_P(ThreadTeam, NoTwoTasksAtATimeHaveTheNumberOfOneThread) {
  std::vector<std::atomic<int>> inside(static_cast<size_t>(GetParam()));
  std::atomic<bool> alone = true;
  parallel_for(2000, [&](int64_t) {
    auto& mine = inside[static_cast<size_t>(current_thread())];
    if (mine.fetch_add(1) != 0) alone = false;
    mine.fetch_sub(1);
  });
  EXPECT_TRUE(alone);
}

TEST_P(ThreadTeam, CallsWithinATaskRunInOrder) {
  std::vector<std::vector<int64_t>> orders(8);
  parallel_for(8, [&](int64_t task) {
    parallel_for(20, [&](int64_t inner) { orders[static_cast<size_t>(task)].push_back(inner); });
  });
  std::vector<int64_t> expected(20);
  std::iota(expected.begin(), expected.end(), 0);
  for (const auto& order : orders) EXPECT_EQ(order, expected);
}

TEST_P(ThreadTeam, ThrowsWhatATaskThrowsAndGoesOn) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_THROW(parallel_for(100,
                              [](int64_t task) {
                                if (task % 10 == 7) throw std::runtime_error("seven");
                              }),
                 std::runtime_error);
    std::atomic<int> runs = 0;
    parallel_for(100, [&](int64_t) { runs.fetch_add(1); });
    EXPECT_EQ(runs.load(), 100);
  }
}

TEST(ThreadTeams, BelongToTheThreadThatCalls) {
  set_threads(2);
  std::vector<int64_t> sums(4);
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([&sums, caller] {
      set_threads(static_cast<int>(caller) + 1);
      for (int job = 0; job < 200; ++job) {
        std::vector<int64_t> values(50);
        parallel_for(50, [&](int64_t task) { values[static_cast<size_t>(task)] = task; });
        sums[caller] += std::accumulate(values.begin(), values.end(), int64_t{0});
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sums, std::vector<int64_t>(4, 200 * 49 * 25));
  EXPECT_EQ(threads(), 2);
}

TEST(ThreadTeams, HaveAThreadAtLeast) { EXPECT_THROW(set_threads(0), ContractError); }

// --- thread binding

// The processors of each thread of the team, as the system reports them. Tasks wait until every thread is here.
std::vector<std::vector<int>> masks_of_team() {
  const int count = threads();
  std::vector<std::vector<int>> masks(static_cast<size_t>(count));
  std::atomic<int> here = 0;
  parallel_for(count, [&](int64_t) {
    here.fetch_add(1);
    while (here.load() < count) std::this_thread::yield();
    masks[static_cast<size_t>(current_thread())] = processors_of_this_thread();
  });
  return masks;
}

TEST(ThreadBinding, EveryThreadOfTheTeamHasItsProcessorAlone) {
  const std::vector<int> free = processors_of_this_thread();
  const std::vector<int> wanted = {free.back(), free.front(), free.back()};  // works with a single processor, too
  bind_threads(wanted);
  EXPECT_EQ(threads(), 3);
  const auto masks = masks_of_team();
  for (size_t thread = 0; thread < wanted.size(); ++thread) {
    EXPECT_EQ(masks[thread], std::vector<int>{wanted[thread]}) << thread;
  }
  bind_threads({});
  EXPECT_EQ(processors_of_this_thread(), free);
}

TEST(ThreadBinding, AnotherNumberOfThreadsFreesThem) {
  const std::vector<int> free = processors_of_this_thread();
  bind_threads({free.front(), free.front()});
  set_threads(2);
  EXPECT_EQ(processors_of_this_thread(), std::vector<int>{free.front()});
  set_threads(3);
  for (const auto& mask : masks_of_team()) EXPECT_EQ(mask, free);
}

TEST(ThreadBinding, AProcessorThatIsNotThereIsNamedAndNothingIsBound) {
  const std::vector<int> free = processors_of_this_thread();
  set_threads(2);
  for (const int absent : {1023, -1}) {
    try {
      bind_threads({free.front(), absent});
      ADD_FAILURE() << "processor " << absent;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(absent)), std::string::npos) << error.what();
    }
    EXPECT_EQ(processors_of_this_thread(), free);
    EXPECT_EQ(threads(), 2);
  }
}

// --- errors

TEST(Require, ThrowsTheErrorWithItsMessage) {
  EXPECT_NO_THROW(require<ConfigError>(true, "key: expected {}, got {}", 1, "2"));
  try {
    require<ConfigError>(false, "key: expected {}, got {}", 1, "2");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "key: expected 1, got 2");
    EXPECT_EQ(error.code(), ExitCode::kConfig);
  }
}

TEST(Require, EachErrorHasItsExitCode) {
  EXPECT_EQ(DataError("").code(), ExitCode::kData);
  EXPECT_EQ(CheckpointError("").code(), ExitCode::kCheckpoint);
  EXPECT_EQ(FaultError("").code(), ExitCode::kFault);
  EXPECT_EQ(CommError("").code(), ExitCode::kComm);
  EXPECT_EQ(MemoryError("").code(), ExitCode::kMemory);
  EXPECT_EQ(ContractError("").code(), ExitCode::kInternal);
}

TEST(ExitCodes, AreThoseOfTheErrorOrOfAShortageOrOfADefect) {
  EXPECT_EQ(exit_code_of(DataError("")), ExitCode::kData);
  EXPECT_EQ(exit_code_of(std::bad_alloc()), ExitCode::kMemory);
  EXPECT_EQ(exit_code_of(std::runtime_error("")), ExitCode::kInternal);
}

TEST(HostMemory, IsToldToAUserWhoseProgramGetsNone) {
  const HostMemory memory = host_memory();
  EXPECT_GT(memory.free_bytes, 0u);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  const std::string message = message_of(std::bad_alloc());
  EXPECT_NE(message.find("MiB of host memory are free"), std::string::npos) << message;
  EXPECT_NE(message.find("train.micro_batch"), std::string::npos) << message;
  EXPECT_EQ(message_of(DataError("as it is")), "as it is");
}

}  // namespace
}  // namespace mantissa
