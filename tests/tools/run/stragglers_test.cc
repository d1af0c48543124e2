#include "tools/run/guard/outliers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/local_communicator.h"
#include "core/profile/range.h"
#include "tests/comm/node_ranks.h"
#include "tools/run/guard/black_box.h"

namespace mantissa {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Seconds in the phases data, forward and backward.
PhaseTimes times(double data, double forward, double backward) {
  PhaseTimes all{};
  all[1] = data;
  all[2] = forward;
  all[3] = backward;
  return all;
}

StragglerDetector detector(int ranks, double factor) { return {{.window = 50, .factor = factor}, ranks}; }

TEST(Stragglers, ASlowRankIsNamedWithItsPhaseOncePerEpisode) {
  StragglerDetector four = detector(4, 1.5);
  const PhaseTimes usual = times(0.1, 0.5, 1.0), slow = times(1.2, 0.5, 1.1);
  EXPECT_THAT(four.judge({usual, usual, usual, usual}, 50), IsEmpty());
  auto changes = four.judge({usual, usual, slow, usual}, 50);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].rank, 2);
  EXPECT_TRUE(changes[0].is_slow);
  EXPECT_EQ(changes[0].phase, "data");
  EXPECT_DOUBLE_EQ(changes[0].seconds, 2.8);
  EXPECT_DOUBLE_EQ(changes[0].others_seconds, 1.6);
  EXPECT_DOUBLE_EQ(changes[0].phase_seconds, 1.2);
  EXPECT_DOUBLE_EQ(changes[0].others_phase_seconds, 0.1);
  EXPECT_EQ(four.slow_ranks(), 1);
  EXPECT_THAT(four.judge({usual, usual, slow, usual}, 50), IsEmpty());
  // A little better is not over yet.
  EXPECT_THAT(four.judge({usual, usual, times(0.7, 0.5, 1.0), usual}, 50), IsEmpty());
  changes = four.judge({usual, usual, usual, usual}, 50);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_FALSE(changes[0].is_slow);
  EXPECT_EQ(four.slow_ranks(), 0);
  EXPECT_THAT(four.judge({usual, usual, slow, usual}, 50), SizeIs(1)) << "another episode";
}

TEST(Stragglers, TwoRanksAreComparedWithEachOther) {
  StragglerDetector two = detector(2, 1.3);
  EXPECT_THAT(two.judge({times(0.0, 1.0, 1.0), times(0.0, 1.0, 1.5)}, 50), IsEmpty());
  const auto changes = two.judge({times(0.0, 1.0, 1.0), times(0.0, 1.0, 1.7)}, 50);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].rank, 1);
  EXPECT_EQ(changes[0].phase, "backward");
}

TEST(Stragglers, TwoSlowRanksOfFiveDoNotHideEachOther) {
  StragglerDetector five = detector(5, 1.3);
  const PhaseTimes usual = times(0.0, 1.0, 1.0), slow = times(0.0, 2.0, 1.0);
  EXPECT_THAT(five.judge({slow, usual, usual, slow, usual}, 50), SizeIs(2));
  EXPECT_EQ(five.slow_ranks(), 2);
}

TEST(Stragglers, LessThanAMillisecondAStepIsNoise) {
  StragglerDetector two = detector(2, 1.3);
  EXPECT_THAT(two.judge({times(0.0, 0.01, 0.01), times(0.0, 0.01, 0.05)}, 50), IsEmpty());
  EXPECT_THAT(two.judge({times(0.0, 0.01, 0.01), times(0.0, 0.01, 0.07)}, 50), SizeIs(1));
}

TEST(Stragglers, OneRankHasNoOthers) { EXPECT_THAT(detector(1, 1.3).judge({times(1.0, 1.0, 1.0)}, 50), IsEmpty()); }

TEST(Stragglers, SaysHowSlowAndWhere) {
  const StragglerChange change{.rank = 3,
                               .is_slow = true,
                               .seconds = 1.55,
                               .others_seconds = 0.775,
                               .phase = "data",
                               .phase_seconds = 0.9,
                               .others_phase_seconds = 0.105};
  EXPECT_EQ(describe(change, "b", 50),
            "rank 3 (node b) is slow: 31.0 ms of work a step, others 15.5 ms;\n  in data 18.0 ms, others 2.1 ms");
  EXPECT_EQ(describe({.rank = 3}, "b", 50), "rank 3 (node b) is no longer slow");
}

TEST(SlowLinks, ASlowNodeIsNamedOncePerEpisodeAmongThreeAndMore) {
  for (const size_t nodes : {size_t{3}, size_t{4}, size_t{5}}) {
    StragglerDetector ranks = detector(8, 1.3);
    std::vector<double> healthy(nodes, 0.020), slow = healthy, better = healthy;
    slow[1] = 0.100;
    better[1] = 0.024;
    auto changes = ranks.judge_links(slow);  // from the start
    ASSERT_THAT(changes, SizeIs(1)) << nodes;
    EXPECT_EQ(changes[0].node, 1);
    EXPECT_TRUE(changes[0].is_slow);
    EXPECT_DOUBLE_EQ(changes[0].seconds, 0.100);
    EXPECT_DOUBLE_EQ(changes[0].usual_seconds, 0.020);
    EXPECT_EQ(ranks.slow_links(), 1);
    EXPECT_THAT(ranks.judge_links(slow), IsEmpty());
    EXPECT_THAT(ranks.judge_links(better), IsEmpty()) << "a little better is not over yet";
    changes = ranks.judge_links(healthy);
    ASSERT_THAT(changes, SizeIs(1));
    EXPECT_EQ(changes[0].node, 1);
    EXPECT_FALSE(changes[0].is_slow);
    EXPECT_EQ(ranks.slow_links(), 0);
    EXPECT_THAT(ranks.judge_links(slow), SizeIs(1)) << "another episode";
  }
}

TEST(SlowLinks, TheOnlyLinkIsComparedWithItsEarlierTimes) {
  StragglerDetector ranks = detector(4, 1.3);
  EXPECT_THAT(ranks.judge_links({0.021, 0.022}), IsEmpty()) << "nothing is known yet";
  EXPECT_THAT(ranks.judge_links({0.020, 0.020}), IsEmpty());
  EXPECT_THAT(ranks.judge_links({0.025, 0.027}), IsEmpty());
  auto changes = ranks.judge_links({0.100, 0.101});
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].node, -1);
  EXPECT_TRUE(changes[0].is_slow);
  EXPECT_DOUBLE_EQ(changes[0].seconds, 0.100);
  EXPECT_DOUBLE_EQ(changes[0].usual_seconds, 0.020);
  EXPECT_THAT(ranks.judge_links({0.100, 0.100}), IsEmpty());
  EXPECT_EQ(ranks.slow_links(), 1);
  changes = ranks.judge_links({0.022, 0.022});
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_FALSE(changes[0].is_slow);
}

TEST(SlowLinks, AllNodesAtOnceAreComparedWithEarlierTimes) {
  StragglerDetector ranks = detector(4, 1.3);
  EXPECT_THAT(ranks.judge_links({0.020, 0.021, 0.020, 0.022}), IsEmpty());
  const auto changes = ranks.judge_links({0.080, 0.081, 0.080, 0.082});
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].node, -1);
}

TEST(SlowLinks, FastLinksMayDifferByNoise) {
  StragglerDetector ranks = detector(4, 1.3);
  EXPECT_THAT(ranks.judge_links({0.00010, 0.00010, 0.00025, 0.00010}), IsEmpty());
  EXPECT_THAT(ranks.judge_links({0.00028, 0.00028, 0.00028, 0.00028}), IsEmpty());
  EXPECT_THAT(ranks.judge_links({0.00010, 0.00010, 0.00035, 0.00010}), SizeIs(1));
  EXPECT_THAT(detector(4, 1.3).judge_links({0.1}), IsEmpty()) << "one node has no links";
}

TEST(SlowLinks, SaysWhichAndHowSlow) {
  const double bytes = NodeLinks::kBytes;
  const LinkChange change{.node = 2, .is_slow = true, .seconds = bytes / 5e6, .usual_seconds = bytes / 25e6};
  const std::string advice = ";\n  look at adapters, cables, switch ports, and other traffic there";
  EXPECT_EQ(describe(change, {"a", "b", "c"}), "the link of node c is slow: 5.0 MB/s, other nodes 25.0 MB/s" + advice);
  EXPECT_EQ(describe({.node = 0}, {"a", "b", "c"}), "the link of node a is no longer slow");
  LinkChange all = change;
  all.node = -1;
  EXPECT_EQ(describe(all, {"a", "b"}),
            "the link between node a and node b is slow: 5.0 MB/s, earlier 25.0 MB/s" + advice);
  EXPECT_EQ(describe(all, {"a", "b", "c"}), "the links of all 3 nodes are slow: 5.0 MB/s, earlier 25.0 MB/s" + advice);
}

// Two ranks. A message of this rank takes `delay` more.
class SlowPair final : public ForwardingCommunicator {
 public:
  SlowPair(std::unique_ptr<Communicator> pair, std::chrono::milliseconds delay)
      : ForwardingCommunicator(std::move(pair)), delay_(delay) {}
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    if (size() > 1) std::this_thread::sleep_for(delay_);
    return ForwardingCommunicator::all_gather(send, recv, stream);
  }

 private:
  const std::chrono::milliseconds delay_;
};

// Pairs of its ranks are slow by `delay`.
class SlowNodes final : public testing::PretendedNodes {
 public:
  SlowNodes(Communicator& all, int node_ranks, std::chrono::milliseconds delay)
      : testing::PretendedNodes(all, node_ranks), delay_(delay) {}

  std::unique_ptr<Communicator> split(int color, int members) override {
    ++splits;
    return std::make_unique<SlowPair>(testing::PretendedNodes::split(color, members), delay_);
  }

  int splits = 0;

 private:
  const std::chrono::milliseconds delay_;
};

// With the link of the last node slow, or of none.
TEST(SlowLinks, TheFastestPartnerOfEachNodeCounts) {
  for (const int nodes : {2, 3, 4, 5, 8}) {
    for (const bool has_slow : {false, true}) {
      run_ranks(2 * nodes, [&](Communicator& local) {
        const bool is_slow = has_slow && local.rank() / 2 == nodes - 1;
        SlowNodes ranks(local, 2, std::chrono::milliseconds(is_slow ? 150 : 0));
        NodeLinks links(ranks);
        std::vector<double> by_node;
        const std::vector<double> seconds = all_gather_records(ranks, links.measure());
        for (const int leader : links.leaders()) by_node.push_back(seconds[static_cast<size_t>(leader)]);
        ASSERT_THAT(by_node, SizeIs(nodes));
        for (int node = 0; node < nodes; ++node) {
          EXPECT_EQ(links.leaders()[static_cast<size_t>(node)], 2 * node);
          const bool sees_it = has_slow && (node == nodes - 1 || nodes == 2);
          EXPECT_EQ(by_node[static_cast<size_t>(node)] > 0.1, sees_it) << nodes << " nodes, node " << node;
        }
        const auto changes = detector(ranks.size(), 1.3).judge_links(by_node);
        if (!has_slow || nodes == 2) return;
        ASSERT_THAT(changes, ::testing::Not(IsEmpty()));
        EXPECT_EQ(changes.back().node, nodes - 1);
      });
    }
  }
}

TEST(SlowLinks, OneNodeSendsNothing) {
  run_ranks(2, [](Communicator& local) {
    SlowNodes ranks(local, 2, {});
    NodeLinks links(ranks);
    EXPECT_EQ(links.measure(), std::numeric_limits<double>::infinity());
    EXPECT_EQ(ranks.splits, 0);
  });
}

// Times are of the innermost phase, without waits.
TEST(Stragglers, TheBlackBoxCountsWorkAndLeavesWaitsOut) {
  using Clock = std::chrono::steady_clock;
  const auto pause = std::chrono::milliseconds(20);
  const std::string folder = ::testing::TempDir() + "/stragglers";
  std::filesystem::remove_all(folder);
  BlackBox box(folder, 0, 1);
  const auto start = Clock::now();
  {
    const Range step(RangeKind::kPhase, "step");
    {
      const Range phase(RangeKind::kPhase, "forward");
      std::this_thread::sleep_for(pause);
    }
    const Range phase(RangeKind::kPhase, "reduce");
    const uint64_t number = box.begin_collective("all_gather", 8);
    std::this_thread::sleep_for(pause);
    box.note(BlackBoxEvent::Kind::kNotice, "an event within a wait");
    std::this_thread::sleep_for(pause);
    box.leave_collective("all_gather", number);
    std::this_thread::sleep_for(pause);
    box.await_collective("all_gather", number);
    std::this_thread::sleep_for(pause);
    box.end_collective("all_gather", number);
  }
  const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  const PhaseTimes work = box.work_seconds(kStepPhases);
  EXPECT_GE(work[2], 0.02);                                // forward
  EXPECT_GE(work[4], 0.02);                                // reduce, while messages travelled
  EXPECT_LE(work[0] + work[2] + work[4], elapsed - 0.06);  // step, forward, reduce: without the waits
  EXPECT_EQ(work[1], 0.0);
}

}  // namespace
}  // namespace mantissa
