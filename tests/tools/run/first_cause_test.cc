// The verdict on prepared black boxes.
#include "tools/run/postmortem/postmortem.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "core/base/error.h"
#include "tests/program/program.h"
#include "tests/tools/run/box_file.h"

namespace mantissa::testing {
namespace {

using Kind = FirstCause::Kind;
using RankList = std::vector<int>;

constexpr int kComm = static_cast<int>(ExitCode::kComm);
constexpr int kData = static_cast<int>(ExitCode::kData);
constexpr int kHang = static_cast<int>(ExitCode::kHang);
constexpr int kPreempted = static_cast<int>(ExitCode::kPreempted);

FirstCause cause_of(const std::string& name, const std::vector<BoxFile>& boxes) {
  const std::string run = fresh_folder(name);
  for (const BoxFile& box : boxes) box.write(run);
  return find_first_cause(read_run_history(run, false));
}

TEST(FirstCause, RankThatDoesNotAnswerTheWatchdog) {
  const FirstCause cause = cause_of(
      "hang",
      {BoxFile(0, 2).passes(100, 41, 11).phase(110, 41, "reduce").waits(120, 41, 12).ends(9000, kHang, "watchdog: x"),
       BoxFile(1, 2).on("b").passes(100, 41, 11).phase(115, 41, "backward")});
  EXPECT_EQ(
      cause.line,
      "the job ended at step 41: rank 1 (node b, process 71) stopped answering in phase backward of step 41; rank 0 "
      "waited for it in collective 12 (node_barrier)");
  EXPECT_EQ(cause.kind, Kind::kHang);
  EXPECT_EQ(cause.ranks, RankList{1});
  EXPECT_EQ(cause.waiting, RankList{0});
  EXPECT_EQ(cause.unix_ns, BoxFile::at(115));
}

TEST(FirstCause, StoppedRankThatTheEndOfTheJobWakes) {
  const FirstCause cause =
      cause_of("woken", {BoxFile(0, 2).passes(100, 41, 11).waits(120, 41, 12).ends(9000, kHang, "watchdog: x"),
                         BoxFile(1, 2)
                             .passes(100, 41, 11)
                             .phase(115, 41, "backward")
                             .waits(9100, 41, 12)
                             .event(BlackBoxEvent::Kind::kPhaseEnds, 9101, 41, "backward")
                             .waits(9102, 41, 13)
                             .beats(9500)
                             .ends(9600, kHang, "watchdog: y")});
  EXPECT_EQ(cause.ranks, RankList{1});
  EXPECT_NE(cause.line.find("stopped answering in phase backward of step 41; rank 0 waited"), std::string::npos)
      << cause.line;
}

// The end of the first rank wakes the stopped one. Another rank leaves its collective then, and takes its report back.
TEST(FirstCause, OnlyTheStoppedRankOfThreeIsNamed) {
  const BoxFile first = BoxFile(0, 3).passes(100, 41, 11).waits(120, 41, 12).ends(9000, kHang, "watchdog: x");
  const BoxFile woken = BoxFile(1, 3).passes(100, 41, 11).phase(115, 41, "backward").waits(9100, 41, 12).beats(9500);
  const BoxFile goes_on = BoxFile(2, 3)
                              .passes(100, 41, 11)
                              .waits(120, 41, 12)
                              .event(BlackBoxEvent::Kind::kCollectiveEnds, 9101, 41, "node_barrier", 12)
                              .waits(9102, 41, 13);
  const std::string line =
      "the job ended at step 41: rank 1 (node a, process 71) stopped answering in phase backward of step 41; ranks 0 "
      "and 2 waited for it in collective 12 (node_barrier)";
  const FirstCause cause = cause_of("took_back", {first, woken, BoxFile(goes_on).beats(9400)});
  EXPECT_EQ(cause.line, line);
  EXPECT_EQ(cause.kind, Kind::kHang);
  EXPECT_EQ(cause.ranks, RankList{1});
  EXPECT_EQ(cause.waiting, (RankList{0, 2}));
  EXPECT_EQ(cause_of("kept", {first, woken, BoxFile(goes_on).ends(9300, kHang, "watchdog: y")}).line, line);
  EXPECT_EQ(cause_of("fails", {first, BoxFile(woken).waits(9101, 41, 13).ends(9600, kComm, "[mpi] peer is gone"),
                               BoxFile(goes_on).ends(9300, kHang, "watchdog: y")})
                .line,
            line);
  // A rank of a lost node waits as well. It was silent, too.
  EXPECT_EQ(
      cause_of("lost_node", {first, BoxFile(1, 3).on("b").passes(100, 41, 11).phase(115, 41, "backward").beats(500),
                             BoxFile(2, 3).on("b").passes(100, 41, 11).waits(120, 41, 12).beats(500)})
          .ranks,
      (RankList{1, 2}));
}

// Once mpirun wakes it, a rank that was stopped in a collective looks as if it had reported.
TEST(FirstCause, AllStoppedRanksThatTheWatchdogNames) {
  const std::string named = "watchdog: no progress for 4 s\n  rank 0 does not answer (node a, process 70)",
                    rest =
                        "\n  rank 1 waits in collective 12 (node_barrier), phase reduce of step 41\n  stacks are in r";
  const auto cause_by = [](const std::string& report) {
    return cause_of("named", {BoxFile(0, 3).passes(90, 41, 10).waits(110, 41, 11).beats(9500),
                              BoxFile(1, 3).passes(100, 41, 11).waits(120, 41, 12).ends(9000, kHang, report),
                              BoxFile(2, 3).passes(100, 41, 11).waits(119, 41, 12).beats(9500)});
  };
  const FirstCause cause = cause_by(named + "\n  rank 2 does not answer (node a, process 72)" + rest);
  EXPECT_EQ(cause.ranks, (RankList{0, 2}));
  EXPECT_EQ(cause.waiting, RankList{1});
  EXPECT_EQ(cause.line,
            "the job ended at step 41: ranks 0 and 2 stopped answering between phases of step 41; rank 1 waited for "
            "them in collective 12 (node_barrier)");
  EXPECT_EQ(cause_by(named + rest).ranks, RankList{0});
  EXPECT_EQ(cause_by(named + "\n  stacks cannot be written to r").ranks, RankList{0});
  EXPECT_EQ(cause_by("watchdog: x\n  rank 2 does not answer (node").ranks, (RankList{0, 2})) << "it is cut off";
}

TEST(FirstCause, RankThatAnswersButStandsStill) {
  const FirstCause cause =
      cause_of("still", {BoxFile(0, 3).waits(100, 5, 12).beats(8000).ends(9000, kHang),
                         BoxFile(1, 3).phase(95, 5, "data").waits(96, 5, 11).beats(8000).ends(9001, kHang),
                         BoxFile(2, 3).waits(100, 5, 12).beats(8000).ends(9001, kHang)});
  EXPECT_EQ(cause.ranks, RankList{1});
  EXPECT_EQ(cause.waiting, (RankList{0, 2}));
  EXPECT_NE(
      cause.line.find("rank 1 (node a, process 71) stood still in phase data of step 5; ranks 0 and 2 waited for it"),
      std::string::npos)
      << cause.line;
}

// Ranks may begin collectives and work meanwhile: all have begun 95, but rank 1 does not get to its end.
TEST(FirstCause, ARankAtWorkWhileCollectivesAreUnderWay) {
  const auto leaves = [](BoxFile box) {
    for (const int number : {94, 95}) {
      box.waits(100, 5, number, "all_gather").event(BlackBoxEvent::Kind::kCollectiveLeft, 100, 5, "all_gather", number);
    }
    return box.phase(101, 6, "forward").beats(8000);
  };
  const auto awaits = [&](int rank, int ranks, int number) {
    return leaves(BoxFile(rank, ranks)).event(BlackBoxEvent::Kind::kCollectiveAwaited, 110, 6, "all_gather", number);
  };
  EXPECT_EQ(cause_of("at_work", {awaits(0, 3, 95).ends(9000, kHang), leaves(BoxFile(1, 3)).ends(9001, kHang),
                                 awaits(2, 3, 94).ends(9001, kHang)})
                .line,
            "the job ended at step 6: rank 1 (node a, process 71) stood still in phase forward of step 6; rank 0 "
            "waited for it in collective 95 (all_gather)");
  // Rank 0 waited for the failed rank 1, and is its echo.
  EXPECT_EQ(
      cause_of("fails", {awaits(0, 2, 94), leaves(BoxFile(1, 2)).ends(9000, kComm, "[mpi] a message was lost")}).ranks,
      RankList{1});
}

TEST(FirstCause, WatchdogsOfNodesWhoseClocksDiffer) {
  const FirstCause cause = cause_of(
      "skewed", {BoxFile(0, 2).waits(100, 5, 12).beats(8000).ends(9000, kHang),
                 BoxFile(1, 2).on("b").passes(90, 5, 11).phase(95, 5, "data").beats(11000).ends(12000, kHang)});
  EXPECT_EQ(cause.ranks, RankList{1});
  EXPECT_NE(cause.line.find("stood still"), std::string::npos) << "it answered: " << cause.line;
}

// Ranks leave a collective together, but node b notes most of its ends late.
TEST(FirstCause, ClocksOfNodesAreComparedByCollectives) {
  for (const int64_t ahead : {62'000, -62'000}) {
    BoxFile near(0, 2), far(1, 2);
    far.on("b").started(ahead);
    for (int number = 1; number <= 9; ++number) {
      const int64_t late = number == 7 ? 0 : 40;
      near.passes(100 * number, 1, number, "all_gather");
      far.waits(100 * number + ahead, 1, number, "all_gather")
          .event(BlackBoxEvent::Kind::kCollectiveEnds, 100 * number + late + ahead, 1, "all_gather", number);
    }
    near.ends(1100, kComm, "[mpi] peer is gone");
    far.ends(1000 + ahead, kData, "no such file");
    const FirstCause cause = cause_of("clocks_of_nodes", {near, far});
    EXPECT_EQ(cause.line, "rank 1 failed first between phases of step 1: no such file");
    EXPECT_EQ(cause.unix_ns, BoxFile::at(1000 + std::max<int64_t>(ahead, 0))) << "of the rank that started last";
  }
}

TEST(FirstCause, TransportThatHangs) {
  const FirstCause cause = cause_of("transport", {BoxFile(0, 2).waits(100, 5, 12, "all_to_all").ends(9000, kHang),
                                                  BoxFile(1, 2).waits(101, 5, 12, "all_to_all").ends(9000, kHang)});
  EXPECT_EQ(cause.ranks, RankList{});
  EXPECT_EQ(
      cause.line,
      "the job ended at step 5: all ranks waited in collective 12 (all_to_all), none was missing: the transport hung");
}

// Rank 0's part of collective 11 has arrived on node b, and rank 1's has not on node a.
TEST(FirstCause, NetworkThatIsCutBetweenNodes) {
  const FirstCause cause = cause_of(
      "cut",
      {BoxFile(0, 2).passes(90, 5, 10).phase(95, 5, "reduce").waits(100, 5, 11, "all_gather").ends(9000, kHang),
       BoxFile(1, 2).on("b").passes(101, 5, 11, "all_gather").waits(102, 5, 12, "all_gather").ends(9000, kHang)});
  EXPECT_EQ(cause.line,
            "the job ended at step 5: the network between the nodes hung, no rank was missing: rank 0 (node a, process "
            "70) waited in collective 11 (all_gather), which all ranks had begun");
  EXPECT_EQ(cause.kind, Kind::kHang);
  EXPECT_EQ(cause.ranks, RankList{});
  EXPECT_EQ(cause.waiting, RankList{0});

  const FirstCause same =
      cause_of("cut_in_one", {BoxFile(0, 2).waits(100, 5, 11, "all_gather").ends(9000, kHang),
                              BoxFile(1, 2).on("b").waits(99, 5, 11, "all_gather").ends(9000, kHang)});
  EXPECT_NE(same.line.find("none was missing: the network between the nodes hung"), std::string::npos) << same.line;
}

TEST(FirstCause, RankThatWasKilledBeforeAnErrorOfCommunication) {
  const std::vector<BoxFile> boxes = {
      BoxFile(0, 3).passes(100, 7, 20).waits(200, 7, 21).ends(1000, kComm, "[mpi] peer is gone\nmore"),
      BoxFile(1, 3).waits(50, 7, 21),  // waits for rank 0, silent for longer than rank 2
      BoxFile(2, 3).passes(100, 7, 20).phase(600, 7, "backward")};
  const FirstCause cause = cause_of("echo", boxes);
  EXPECT_EQ(
      cause.line,
      "rank 2 (node a, process 72) was killed (no end mark) in phase backward of step 7, 0.4 s before rank 0 failed: "
      "[mpi] peer is gone");
  EXPECT_EQ(cause.kind, Kind::kGone);
  EXPECT_EQ(cause.ranks, RankList{2});
  EXPECT_EQ(cause.waiting, (RankList{0, 1}));

  std::vector<BoxFile> two_nodes = boxes;
  two_nodes[2].on("b");
  EXPECT_NE(cause_of("clocks", two_nodes).line.find("rank 0 failed, by the clocks of the nodes: [mpi]"),
            std::string::npos);
  std::vector<BoxFile> later = boxes;
  later[2].beats(1001);
  EXPECT_EQ(cause_of("later", later).line, "rank 0 failed first between phases of step 7: [mpi] peer is gone");
}

TEST(FirstCause, ErrorsThatEchoALostNode) {
  const auto cause = [](int64_t third) {
    return cause_of("node", {BoxFile(0, 4).waits(120, 9, 12).ends(4000, kComm, "[mpi] peer is gone"),
                             BoxFile(1, 4).waits(120, 9, 12).ends(4100, kComm, "[mpi] peer is gone"),
                             BoxFile(2, 4).on("b").phase(130, 9, "forward").beats(1500),
                             BoxFile(3, 4).on("b").phase(130, 9, "forward").beats(third)});
  };
  EXPECT_EQ(cause(1900).ranks, (RankList{2, 3}));
  EXPECT_EQ(cause(1900).line.find("node b (ranks 2 and 3) was killed (no end mark) in phase forward of step 9, 2.5 s "
                                  "before rank 0 failed, by the clocks of the nodes: [mpi] peer is gone"),
            0u)
      << cause(1900).line;
  EXPECT_EQ(cause(3900).ranks, RankList{2}) << "they did not die together";
  EXPECT_EQ(cause(3900).line.find("rank 2 (node b, process 72) was killed"), 0u) << cause(3900).line;
}

TEST(FirstCause, ErrorThatIsNoEcho) {
  const FirstCause cause = cause_of("own", {BoxFile(0, 2).phase(100, 7, "data").ends(1000, kData, "no such file"),
                                            BoxFile(1, 2).phase(100, 7, "forward")});
  EXPECT_EQ(cause.line, "rank 0 failed first in phase data of step 7: no such file");
  EXPECT_EQ(cause.kind, Kind::kFailed);
}

TEST(FirstCause, ErrorThatAllRanksDecideTogether) {
  const std::string error = "silent data corruption after step 8: rank 0 (a): second moment of 'x'";
  const FirstCause cause = cause_of(
      "together", {BoxFile(0, 2).done(90, 8).ends(104, 5, error), BoxFile(1, 2).done(90, 8).ends(100, 5, error)});
  EXPECT_EQ(cause.line, "all ranks ended together in step 8: " + error);
  EXPECT_EQ(cause.ranks, (RankList{0, 1}));
}

TEST(FirstCause, EarliestOfSeveralErrors) {
  const FirstCause cause =
      cause_of("errors", {BoxFile(0, 3).ends(1000, kComm, "[mpi] late"), BoxFile(1, 3).ends(900, 139, "SIGSEGV"),
                          BoxFile(2, 3).waits(100, 1, 1).ends(5000, kHang, "watchdog: later still")});
  EXPECT_EQ(cause.ranks, RankList{1});
  EXPECT_EQ(cause.waiting, RankList{2});
  EXPECT_EQ(cause.line, "rank 1 failed first at the start: SIGSEGV");
  EXPECT_EQ(cause.unix_ns, BoxFile::at(900));
}

TEST(FirstCause, SignsOfLifeTellTheRankThatWasKilledFirst) {
  const FirstCause cause =
      cause_of("beats", {BoxFile(0, 4).waits(120, 9, 12).beats(4000), BoxFile(1, 4).waits(120, 9, 12).beats(4000),
                         BoxFile(2, 4).on("b").phase(130, 9, "forward").beats(1500),
                         BoxFile(3, 4).on("b").phase(130, 9, "forward").beats(1900)});
  EXPECT_EQ(cause.kind, Kind::kGone);
  EXPECT_EQ(cause.ranks, (RankList{2, 3}));
  EXPECT_EQ(
      cause.line,
      "the job ended at step 9: node b (ranks 2 and 3) was killed (no end mark) in phase forward of step 9, 2.5 s "
      "before "
      "the last sign of life of the others, by the clocks of the nodes; ranks 0 and 1 waited for them in collective 12 "
      "(node_barrier)");
}

TEST(FirstCause, AllKilledAtOnce) {
  // Rank 0 waits, as it does in every step: it does not follow that rank 1 went first.
  const std::vector<BoxFile> boxes = {BoxFile(0, 2).waits(1200, 9, 12).beats(4000),
                                      BoxFile(1, 2).phase(130, 9, "forward").beats(3600)};
  const FirstCause cause = cause_of("at_once", boxes);
  EXPECT_EQ(cause.kind, Kind::kUnclear);
  EXPECT_EQ(cause.ranks, RankList{});
  EXPECT_EQ(
      cause.line,
      "the job ended at step 9: all ranks were killed at once (no end mark), as the end of a job or of mpirun does; "
      "last sign of life: " +
          time_text(BoxFile::at(4000)));
  EXPECT_EQ(cause.unix_ns, BoxFile::at(4000));
}

TEST(FirstCause, ARankWithoutABoxMayHaveGoneFirst) {
  const FirstCause cause = cause_of("no_box_of_one", {BoxFile(0, 3).beats(4000), BoxFile(2, 3).beats(4000)});
  EXPECT_EQ(cause.kind, Kind::kUnclear);
  EXPECT_EQ(cause.line,
            "the job ended before its first step: ranks 0 and 2 were killed at once (no end mark), as the end of a job "
            "or of mpirun does; last sign of life: " +
                time_text(BoxFile::at(4000)) + "; rank 1 left no black box that can be read, and may have gone first");
}

TEST(FirstCause, OneRankThatWasKilled) {
  const FirstCause cause = cause_of("alone", {BoxFile(0, 1).phase(130, 9, "forward")});
  EXPECT_EQ(
      cause.line,
      "the job ended at step 9: rank 0 (node a, process 70) was killed (no end mark) in phase forward of step 9; its "
      "last sign of life was at " +
          time_text(BoxFile::at(0)));
}

TEST(FirstCause, OutputThatNobodyReads) {
  const BoxFile blocked = BoxFile(0, 1).phase(100, 5, "validation").unread();
  const std::string line =
      "the job ended at step 5: rank 0 (node a, process 70) stood still in phase validation of "
      "step 5: its output was not read";
  const FirstCause cause = cause_of("unread", {blocked});
  EXPECT_EQ(cause.line, line) << "its watchdog ended it, and could not say so";
  EXPECT_EQ(cause.kind, Kind::kHang);
  EXPECT_EQ(cause_of("unread_end", {BoxFile(blocked).ends(9000, kHang, "watchdog: x")}).line, line);
  EXPECT_EQ(cause_of("unread_of_two", {BoxFile(0, 2).phase(100, 5, "validation").unread(),
                                       BoxFile(1, 2).waits(110, 5, 12).ends(9000, kHang, "watchdog: x")})
                .line,
            "the job ended at step 5: rank 0 (node a, process 70) stopped answering in phase validation of step 5: its "
            "output was not read; rank 1 waited for it in collective 12 (node_barrier)");
}

// As after a SIGKILL of mpirun, which holds the output of its ranks.
TEST(FirstCause, TheEndOfTheLauncherIsNoFailureOfARank) {
  const std::string error = "its output was not read (SIGPIPE)";
  const BoxFile unread = BoxFile(0, 2).done(100, 50).ends(101, 128 + SIGPIPE, error);
  const FirstCause cause = cause_of("launcher", {unread, BoxFile(1, 2).waits(137, 50, 338, "all_gather_bytes")});
  EXPECT_EQ(cause.line,
            "the job ended at step 50: the launcher of the ranks, such as mpirun, was killed or ended: nobody read the "
            "output of rank 0 any more (SIGPIPE)");
  EXPECT_EQ(cause.kind, Kind::kUnclear);
  EXPECT_EQ(cause.ranks, RankList{});
  EXPECT_EQ(cause_of("no_launcher", {BoxFile(0, 1).done(100, 50).ends(101, 128 + SIGPIPE, error)}).line,
            "rank 0 failed between phases of step 50: " + error);
}

TEST(FirstCause, TimesAreThoseOfTheReadersZone) {
  setenv("TZ", "EST5", 1);
  tzset();
  EXPECT_EQ(time_text(BoxFile::at(0)), "2023-11-14 17:13:20 EST");
  unsetenv("TZ");
  tzset();
}

TEST(FirstCause, EndsThatAreNoFailure) {
  EXPECT_EQ(cause_of("done", {BoxFile(0, 2).ends(100, 0), BoxFile(1, 2).ends(100, 0)}).line, "done: exit code 0");

  const std::string run = fresh_folder("stopped");
  BoxFile(0, 1)
      .done(90, 30)
      .event(BlackBoxEvent::Kind::kStopAsked, 95, 30, "stop", SIGTERM)
      .ends(100, kPreempted)
      .write(run);
  FirstCause cause = find_first_cause(read_run_history(run, false));
  EXPECT_EQ(cause.line, "stopped by SIGTERM, with a checkpoint (exit code 75)");
  EXPECT_EQ(cause.kind, Kind::kStopped);

  BlackBox box(run + "/black_box", 0, 1);
  box.set_step(31);
  box.begin(RangeKind::kPhase, "forward");
  cause = find_first_cause(read_run_history(run, false));
  EXPECT_EQ(cause.line, "still running, in step 31");
  EXPECT_EQ(cause.kind, Kind::kRunning);
  cause = find_first_cause(read_run_history(run, true));
  EXPECT_EQ(cause.line, "stopped by SIGTERM, with a checkpoint (exit code 75)");
}

}  // namespace
}  // namespace mantissa::testing
