#include "tools/run/job/job.h"

#include <gtest/gtest.h>

#include "comm/local/local_communicator.h"
#include "core/base/thread_team.h"

namespace mantissa {
namespace {

// 8 cores of two hardware threads in two packages.
const char* const kMachine = "package:2 core:4 pu:2";
constexpr int kProcessors = 16;

ProcessorMask processors_from(int first, int count) {
  ProcessorMask mask;
  for (int number = first; number < first + count; ++number) mask.set(static_cast<size_t>(number));
  return mask;
}

// The processors that rank `index` binds its threads to, among ranks with these masks and numbers of threads.
std::vector<int> choose(const std::vector<ProcessorMask>& masks, size_t index, std::vector<int> threads) {
  NodeProcessors node{.ranks = {}, .masks = masks, .index = index};
  for (size_t rank = 0; rank < masks.size(); ++rank) node.ranks.push_back(static_cast<int>(rank));
  return choose_processors(ProcessorTopology::synthetic(kMachine), node, threads);
}

TEST(ThreadPinning, FreeRanksThatFitGetCoresOfTheirOwn) {
  const std::vector<ProcessorMask> masks(2, processors_from(0, kProcessors));
  EXPECT_EQ(choose(masks, 0, {3, 3}), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(choose(masks, 1, {3, 3}), (std::vector<int>{8, 10, 12}));
}

TEST(ThreadPinning, ARankThatIsAloneStaysFree) {
  EXPECT_TRUE(choose({processors_from(0, kProcessors)}, 0, {4}).empty());
  EXPECT_TRUE(choose({processors_from(0, 8), processors_from(8, 8)}, 0, {2, 2}).empty());
}

TEST(ThreadPinning, AnOversubscribedMachineBindsNobody) {
  EXPECT_TRUE(choose(std::vector<ProcessorMask>(3, processors_from(0, kProcessors)), 0, {3, 3, 3}).empty());
}

// As OpenMPI binds more than two ranks unless it is told otherwise: those of a NUMA node to all of it.
TEST(ThreadPinning, RanksThatTheLauncherBoundTogetherKeepToTheirPart) {
  const std::vector<ProcessorMask> masks = {processors_from(0, 8), processors_from(8, 8), processors_from(0, 8),
                                            processors_from(8, 8)};
  EXPECT_EQ(choose(masks, 0, {2, 2, 2, 2}), (std::vector<int>{0, 2}));
  EXPECT_EQ(choose(masks, 1, {2, 2, 2, 2}), (std::vector<int>{8, 10}));
  EXPECT_EQ(choose(masks, 2, {2, 2, 2, 2}), (std::vector<int>{4, 6}));
  EXPECT_EQ(choose(masks, 3, {2, 2, 2, 2}), (std::vector<int>{12, 14}));
}

TEST(ThreadPinning, RanksThatDifferStayFree) {
  const ProcessorMask all = processors_from(0, kProcessors);
  EXPECT_TRUE(choose({all, processors_from(0, 8), all}, 0, {2, 2, 2}).empty());
  EXPECT_TRUE(choose({all, all}, 0, {2, 1}).empty());
}

TEST(ThreadPinning, ProcessorsAreDividedAmongThoseThatShareThem) {
  NodeProcessors node{.ranks = {0, 1, 2},
                      .masks = {processors_from(0, 8), processors_from(0, 8), processors_from(8, 3)}};
  EXPECT_EQ(node.share(), 4);
  node.index = 2;
  EXPECT_EQ(node.share(), 3);
  node.masks.assign(3, processors_from(5, 1));
  EXPECT_EQ(node.share(), 1);
}

TEST(ThreadPinning, RanksSeeEachOthersProcessors) {
  run_ranks(3, [&](Communicator& communicator) {
    const NodeProcessors node = gather_processors(communicator);
    EXPECT_EQ(node.ranks, (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(node.index, static_cast<size_t>(communicator.rank()));
    EXPECT_EQ(node.own().count(), processors_of_this_thread().size());
    EXPECT_EQ(node.sharing(), 3);
  });
}

// Ranks as threads of this process: each binds a team of its own, where both fit.
TEST(ThreadPinning, RanksBindTheirThreadsAsTheLineSays) {
  const auto topology = ProcessorTopology::of_this_machine();
  const std::vector<int> free = processors_of_this_thread();
  const bool binds = topology.restricted_to(free).cores() >= 2;
  run_ranks(2, [&](Communicator& communicator) {
    const std::string line = pin_threads(communicator, gather_processors(communicator), 1);
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
  run_ranks(2, [&](Communicator& communicator) {
    EXPECT_EQ(pin_threads(communicator, gather_processors(communicator), cores + 1), "");
    EXPECT_EQ(processors_of_this_thread(), free);
  });
}

}  // namespace
}  // namespace mantissa
