#include "tools/train/thread_pinning.h"

#include <gtest/gtest.h>

#include "core/base/thread_binding.h"
#include "core/base/thread_team.h"
#include "tests/comm/rank_threads.h"

namespace mantissa {
namespace {

// 8 cores of two hardware threads in two packages.
const char* const kMachine = "package:2 core:4 pu:2";

std::vector<PinningRecord> ranks_of(int ranks, int threads) {
  return std::vector<PinningRecord>(static_cast<size_t>(ranks), {.node = 1, .threads = threads, .free = true});
}

TEST(ThreadPinning, FreeRanksThatFitGetCoresOfTheirOwn) {
  const auto topology = ProcessorTopology::synthetic(kMachine);
  EXPECT_EQ(choose_processors(topology, ranks_of(2, 3), 0), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(choose_processors(topology, ranks_of(2, 3), 1), (std::vector<int>{8, 10, 12}));
}

TEST(ThreadPinning, ARankThatIsAloneStaysFree) {
  EXPECT_TRUE(choose_processors(ProcessorTopology::synthetic(kMachine), ranks_of(1, 4), 0).empty());
}

TEST(ThreadPinning, AnOversubscribedMachineBindsNobody) {
  EXPECT_TRUE(choose_processors(ProcessorTopology::synthetic(kMachine), ranks_of(3, 3), 0).empty());
}

TEST(ThreadPinning, OneRankThatTheLauncherHasBoundOrThatDiffersKeepsAllFree) {
  const auto topology = ProcessorTopology::synthetic(kMachine);
  auto ranks = ranks_of(2, 2);
  ranks[1].free = false;
  EXPECT_TRUE(choose_processors(topology, ranks, 0).empty());
  ranks = ranks_of(2, 2);
  ranks[1].threads = 1;
  EXPECT_TRUE(choose_processors(topology, ranks, 0).empty());
}

// Ranks as threads of this process: each binds a team of its own, if both fit and nobody has bound this process.
TEST(ThreadPinning, RanksBindTheirThreadsAsTheLineSays) {
  const auto topology = ProcessorTopology::of_this_machine();
  const std::vector<int> free = processors_of_this_thread();
  const bool binds = topology.cores() >= 2 && static_cast<int>(free.size()) >= topology.processors();
  testing::run_ranks(2, [&](Communicator& communicator) {
    const std::string line = pin_threads(communicator, 1);
    const std::vector<int> bound = processors_of_this_thread();
    const auto all = all_gather_records(communicator, bound.front());
    EXPECT_EQ(!line.empty(), binds);
    EXPECT_EQ(all[0] != all[1], binds);
    if (binds) {
      EXPECT_EQ(bound.size(), 1u);
      EXPECT_NE(line.find(std::to_string(bound.front())), std::string::npos) << line;
    } else {
      EXPECT_EQ(bound, free);
    }
  });
}

TEST(ThreadPinning, RanksThatDoNotFitStayFree) {
  const int cores = ProcessorTopology::of_this_machine().cores();
  const std::vector<int> free = processors_of_this_thread();
  testing::run_ranks(2, [&](Communicator& communicator) {
    EXPECT_EQ(pin_threads(communicator, cores), "");
    EXPECT_EQ(processors_of_this_thread(), free);
  });
}

}  // namespace
}  // namespace mantissa
