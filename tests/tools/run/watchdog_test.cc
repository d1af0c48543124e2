#include "tools/run/guard/watchdog.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>

#include "core/base/error.h"
#include "core/io/files.h"
#include "tests/program/program.h"

namespace mantissa {
namespace {

using std::chrono::milliseconds;

TEST(Watchdog, LearnsItsDeadlines) {
  const WatchdogDeadline learned{.fixed_s = 0.0, .least_s = 300.0};
  EXPECT_EQ(deadline_at({.longest_quiet_s = 2.0}, learned), 300.0);
  EXPECT_EQ(deadline_at({.longest_quiet_s = 40.0}, learned), 400.0);
  EXPECT_EQ(deadline_at({.longest_quiet_s = -1.0}, learned), 1800.0) << "The phase has not ended yet.";
  EXPECT_EQ(deadline_at({.longest_quiet_s = 40.0}, {.fixed_s = 7.0}), 7.0);
}

RankReport report_of(int rank, const std::string& phase, uint64_t begun, uint64_t awaited) {
  return {.host = "node" + std::to_string(rank),
          .pid = 100 + rank,
          .step = 41,
          .phase = phase,
          .collective = "all_to_all",
          .begun = begun,
          .awaited = awaited};
}

TEST(Watchdog, NamesTheRankThatIsMissing) {
  const auto last_seen = [](int rank) { return " (box " + std::to_string(rank) + ")"; };
  const RankReport waiting = report_of(0, "reduce", 12, 12);
  EXPECT_EQ(who_is_missing({{0, waiting}}, 2, last_seen),
            "\n  rank 1 does not answer (box 1)"
            "\n  rank 0 waits in collective 12 (all_to_all), phase reduce of step 41");
  EXPECT_EQ(who_is_missing({{0, waiting}, {1, report_of(1, "data", 11, 0)}, {2, report_of(2, "reduce", 12, 12)}}, 3,
                           last_seen),
            "\n  rank 1 (node node1, process 101) stands still in phase data of step 41, after 11 collectives"
            "\n  ranks 0 and 2 wait in collective 12 (all_to_all), phase reduce of step 41");
  // Two collectives were begun in turn: rank 1 waits in the first, rank 0 has passed it.
  RankReport behind = report_of(1, "reduce", 11, 11);
  EXPECT_EQ(who_is_missing({{0, waiting}, {1, behind}}, 2, last_seen),
            "\n  no rank is missing: the network between the nodes hangs; rank 1 still waits in collective 11 "
            "(all_to_all), which all ranks have begun"
            "\n  rank 0 waits in collective 12 (all_to_all), phase reduce of step 41");
  EXPECT_EQ(who_is_missing({{0, waiting}, {1, behind}}, 3, last_seen),
            "\n  rank 2 does not answer (box 2)"
            "\n  rank 1 waits in collective 11 (all_to_all), phase reduce of step 41"
            "\n  rank 0 waits in collective 12 (all_to_all), phase reduce of step 41");
  // Rank 2 works while collectives that it has begun are under way, and the others wait for some of them.
  EXPECT_EQ(who_is_missing({{0, waiting}, {1, behind}, {2, report_of(2, "forward", 14, 0)}}, 3, last_seen),
            "\n  rank 2 (node node2, process 102) stands still in phase forward of step 41, after 14 collectives"
            "\n  rank 1 waits in collective 11 (all_to_all), phase reduce of step 41"
            "\n  rank 0 waits in collective 12 (all_to_all), phase reduce of step 41");
  behind.host = waiting.host;
  EXPECT_EQ(who_is_missing({{0, waiting}, {1, behind}}, 2, last_seen),
            "\n  rank 1 (node node0, process 101) stands still in phase reduce of step 41, after 11 collectives"
            "\n  rank 0 waits in collective 12 (all_to_all), phase reduce of step 41");
  RankReport beside = report_of(1, "reduce", 12, 12);
  EXPECT_EQ(who_is_missing({{0, waiting}, {1, beside}}, 2, last_seen),
            "\n  no rank is missing: the network between the nodes hangs"
            "\n  ranks 0 and 1 wait in collective 12 (all_to_all), phase reduce of step 41");
  beside.host = waiting.host;
  EXPECT_EQ(who_is_missing({{0, waiting}, {1, beside}}, 2, last_seen),
            "\n  no rank is missing: the transport hangs"
            "\n  ranks 0 and 1 wait in collective 12 (all_to_all), phase reduce of step 41");
  EXPECT_EQ(who_is_missing({{0, report_of(0, "data", 12, 0)}}, 1, last_seen),
            "\n  rank 0 (node node0, process 100) stands still in phase data of step 41, after 12 collectives");
}

// Ranks as processes that share a folder. Rank r runs `bodies[r]`; its watchdog ends it with code 7 if it is the
// speaker, else 8, and writes the message to FOLDER/message.
class WatchedRanks {
 public:
  using Body = std::function<void(BlackBox&)>;

  WatchedRanks(const std::string& name, const std::vector<Body>& bodies, const WatchdogDeadline& deadline)
      : folder_(testing::fresh_folder(name)) {
    for (int rank = 0; rank < static_cast<int>(bodies.size()); ++rank) {
      const pid_t child = fork();
      if (child == 0) run(rank, static_cast<int>(bodies.size()), bodies[static_cast<size_t>(rank)], deadline);
      processes_.push_back(child);
    }
  }
  ~WatchedRanks() {
    for (const pid_t process : processes_) kill(process, SIGKILL);
    for (const pid_t process : processes_) waitpid(process, nullptr, 0);
  }

  int exit_code(int rank) {
    int status = 0;
    waitpid(processes_[static_cast<size_t>(rank)], &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string read(const std::string& file) const { return testing::read_file(folder_ + "/" + file); }
  bool has(const std::string& file) const { return std::filesystem::exists(folder_ + "/" + file); }

 private:
  [[noreturn]] void run(int rank, int ranks, const Body& body, const WatchdogDeadline& deadline) const {
    BlackBox box(folder_ + "/black_box", rank, ranks);
    {
      const auto give_up = [this](const std::string& message, bool speaks) {
        if (speaks) testing::write_file(folder_ + "/message", message);
        _exit(speaks ? 7 : 8);
      };
      const Watchdog watchdog(box, {.deadline = deadline,
                                    .folder = folder_ + "/watchdog",
                                    .box_folder = folder_ + "/black_box",
                                    .rank = rank,
                                    .ranks = ranks,
                                    .interval = milliseconds(100),
                                    .give_up = give_up});
      body(box);
    }
    _exit(0);
  }

  const std::string folder_;
  std::vector<pid_t> processes_;
};

[[noreturn]] void wait_forever() {
  while (true) pause();  // the signal for the stack ends a pause
}

void wait_in_collective(BlackBox& box) {
  box.set_step(5);
  const Range phase(RangeKind::kPhase, "reduce");
  box.begin_collective("all_to_all", 8);
  wait_forever();
}

TEST(Watchdog, EndsAllLivingRanksWhenOneIsStopped) {
  const auto stop = [](BlackBox& box) {
    box.set_step(5);
    const Range phase(RangeKind::kPhase, "backward");
    raise(SIGSTOP);
  };
  WatchedRanks ranks("one_stopped", {wait_in_collective, stop, wait_in_collective}, {.fixed_s = 1.0});
  EXPECT_EQ(ranks.exit_code(0), 7);
  EXPECT_EQ(ranks.exit_code(2), 8);
  const std::string message = ranks.read("message");
  EXPECT_NE(message.find("\n  rank 1 does not answer"), std::string::npos) << message;
  EXPECT_NE(message.find("last event: the start of phase backward, step 5"), std::string::npos) << message;
  EXPECT_NE(message.find("\n  ranks 0 and 2 wait in collective 1 (all_to_all), phase reduce of step 5"),
            std::string::npos)
      << message;
  for (const char* file : {"watchdog/stacks-rank-0000.txt", "watchdog/stacks-rank-0002.txt"}) {
    EXPECT_NE(ranks.read(file).find("wait_in_collective"), std::string::npos) << ranks.read(file);
  }
}

TEST(Watchdog, MakesItsFolderAgain) {
  const std::string folder = ::testing::TempDir() + "/no_folder/watchdog";
  const auto remove = [&folder](BlackBox& box) {
    std::filesystem::remove_all(folder);
    wait_in_collective(box);
  };
  WatchedRanks ranks("no_folder", {remove, wait_in_collective}, {.fixed_s = 1.0});
  EXPECT_EQ(ranks.exit_code(0), 7);
  EXPECT_EQ(ranks.exit_code(1), 8);
  EXPECT_NE(ranks.read("message").find("ranks 0 and 1 wait in collective 1"), std::string::npos)
      << ranks.read("message");
  EXPECT_TRUE(ranks.has("watchdog/stacks-rank-0000.txt"));
}

TEST(Watchdog, CallsNoRankSilentWhereReportsCannotBeWritten) {
  const std::string folder = ::testing::TempDir() + "/no_reports/watchdog";
  const auto block = [&folder](BlackBox& box) {
    while (!std::filesystem::is_regular_file(folder)) {  // the other rank may make the folder meanwhile
      std::filesystem::remove_all(folder);
      std::ofstream(folder) << "a file";
    }
    wait_in_collective(box);
  };
  const auto wait = [&folder](BlackBox& box) {
    while (!std::filesystem::is_regular_file(folder)) std::this_thread::sleep_for(milliseconds(10));
    wait_in_collective(box);
  };
  WatchedRanks ranks("no_reports", {block, wait}, {.fixed_s = 1.0});
  EXPECT_EQ(ranks.exit_code(0), 7);
  EXPECT_EQ(ranks.exit_code(1), 7) << "neither knows of the other";
  const std::string message = ranks.read("message");
  EXPECT_EQ(message.find("does not answer"), std::string::npos) << message;
  EXPECT_NE(message.find("the missing rank is not known: reports in " + folder + " cannot be written ("),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("stacks cannot be written to " + folder), std::string::npos) << message;
}

TEST(Watchdog, TheLowestLivingRankSpeaks) {
  WatchedRanks ranks("lowest_stopped", {[](BlackBox&) { raise(SIGSTOP); }, wait_in_collective}, {.fixed_s = 1.0});
  EXPECT_EQ(ranks.exit_code(1), 7);
  EXPECT_NE(ranks.read("message").find("\n  rank 0 does not answer"), std::string::npos) << ranks.read("message");
}

TEST(Watchdog, NamesARankThatWaitsElsewhere) {
  const auto read_data = [](BlackBox&) {
    const Range phase(RangeKind::kPhase, "data");
    wait_forever();
  };
  WatchedRanks ranks("elsewhere", {wait_in_collective, read_data}, {.fixed_s = 1.0});
  EXPECT_EQ(ranks.exit_code(0), 7);
  EXPECT_EQ(ranks.exit_code(1), 8);
  EXPECT_NE(ranks.read("message").find("rank 1 (node "), std::string::npos) << ranks.read("message");
  EXPECT_NE(ranks.read("message").find("stands still in phase data of step 0"), std::string::npos);
}

TEST(Watchdog, LeavesARunAloneThatGoesOn) {
  const auto go_on = [](BlackBox& box) {
    for (int i = 0; i < 30; ++i) {
      box.note(BlackBoxEvent::Kind::kValidation, "alive");
      std::this_thread::sleep_for(milliseconds(50));
    }
  };
  WatchedRanks ranks("goes_on", {go_on, go_on}, {.fixed_s = 1.0});
  EXPECT_EQ(ranks.exit_code(0), 0);
  EXPECT_EQ(ranks.exit_code(1), 0);
  EXPECT_FALSE(ranks.has("message"));
}

TEST(Watchdog, ForgetsAnAlarmWhenTheRunGoesOn) {
  const auto rest = [](BlackBox& box) {
    std::this_thread::sleep_for(milliseconds(1200));  // over half of the deadline
    box.note(BlackBoxEvent::Kind::kValidation, "alive");
    std::this_thread::sleep_for(milliseconds(300));
  };
  WatchedRanks ranks("rests", {rest, rest}, {.fixed_s = 2.0});
  EXPECT_EQ(ranks.exit_code(0), 0);
  EXPECT_EQ(ranks.exit_code(1), 0);
  EXPECT_FALSE(ranks.has("watchdog/alarm"));
  EXPECT_FALSE(ranks.has("watchdog/report-rank-0000.json"));
}

TEST(Watchdog, RanksGrantTheDeadlineOfTheOneTheyWaitFor) {
  const auto wait = [](BlackBox& box) {
    { const Range learned(RangeKind::kPhase, "reduce"); }  // its deadline is 3 s
    const Range phase(RangeKind::kPhase, "reduce");
    const uint64_t number = box.begin_collective("all_to_all", 8);
    std::this_thread::sleep_for(milliseconds(4500));
    box.end_collective("all_to_all", number);
  };
  const auto save = [](BlackBox&) {
    const Range first(RangeKind::kPhase, "checkpoint");  // its deadline is 18 s
    std::this_thread::sleep_for(milliseconds(4500));
  };
  WatchedRanks ranks("grants", {wait, save}, {.fixed_s = 0.0, .least_s = 3.0});
  EXPECT_EQ(ranks.exit_code(0), 0);
  EXPECT_EQ(ranks.exit_code(1), 0);
}

TEST(Watchdog, ARunThatGoesOnAtTheLastMomentIsNotEnded) {
  const std::string report = ::testing::TempDir() + "/last_moment/watchdog/report-rank-0000.json";
  const auto wait_for_the_end = [&report](BlackBox& box) {
    while (testing::read_file(report).find("\"gives_up\":true") == std::string::npos) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    box.note(BlackBoxEvent::Kind::kValidation, "alive");
    std::this_thread::sleep_for(milliseconds(300));
  };
  WatchedRanks ranks("last_moment", {wait_for_the_end, [](BlackBox&) { raise(SIGSTOP); }}, {.fixed_s = 1.0});
  EXPECT_EQ(ranks.exit_code(0), 0);
  EXPECT_FALSE(ranks.has("watchdog/alarm"));
  EXPECT_FALSE(ranks.has("watchdog/report-rank-0000.json"));
}

// mpirun wakes the stopped rank once another has ended: the ranks that waited for it leave their collective.
TEST(Watchdog, ARankThatGoesOnAfterTheEndOfAnotherEndsAsWell) {
  const std::string boxes = ::testing::TempDir() + "/end_of_another/black_box";
  const auto exit_code_in_box = [&boxes](int rank) {
    return read_black_box(BlackBox::path(boxes, rank)).header.exit_code;
  };
  const auto go_on_at_the_end = [&](BlackBox& box) {
    for (int i = 0; i < 24; ++i) {  // it gives up later than rank 0
      box.note(BlackBoxEvent::Kind::kValidation, "alive");
      std::this_thread::sleep_for(milliseconds(50));
    }
    while (exit_code_in_box(0) != static_cast<int>(ExitCode::kHang)) std::this_thread::sleep_for(milliseconds(10));
    box.note(BlackBoxEvent::Kind::kValidation, "alive");
    std::this_thread::sleep_for(milliseconds(1000));
    raise(SIGKILL);  // as mpirun does
  };
  WatchedRanks ranks("end_of_another", {wait_in_collective, [](BlackBox&) { raise(SIGSTOP); }, go_on_at_the_end},
                     {.fixed_s = 1.0});
  EXPECT_EQ(ranks.exit_code(0), 7);
  EXPECT_EQ(ranks.exit_code(2), 8) << "it took its report back";
  EXPECT_EQ(exit_code_in_box(2), static_cast<int>(ExitCode::kHang));
  EXPECT_TRUE(ranks.has("watchdog/report-rank-0002.json"));
}

TEST(Watchdog, NotesThatNobodyReadsTheOutput) {
  const auto write_lines = [](BlackBox&) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0 || dup2(ends[1], STDERR_FILENO) < 0) _exit(1);
    const std::string line(4096, 'x');
    while (write(STDERR_FILENO, line.data(), line.size()) > 0) continue;
    wait_forever();
  };
  WatchedRanks ranks("unread", {write_lines}, {.fixed_s = 0.4});
  EXPECT_EQ(ranks.exit_code(0), 7);
  EXPECT_EQ(read_black_box(BlackBox::path(::testing::TempDir() + "/unread/black_box", 0)).header.output_unread, 1);
}

TEST(Watchdog, EndsAProcessWhoseFileSystemHangs) {
  struct HangingFiles final : FileFaultInjector {
    int before(FileOperation, const std::string&, size_t&) override { wait_forever(); }
  };
  static HangingFiles files;
  const auto hang = [](BlackBox&) {
    set_file_fault_injector(&files);  // blocks the thread with the message
    wait_forever();
  };
  WatchedRanks ranks("hanging_files", {hang}, {.fixed_s = 0.4});
  EXPECT_EQ(ranks.exit_code(0), 7);
  EXPECT_FALSE(ranks.has("message"));
}

// The exit code of a process that runs `body` under a watch of two seconds, and is continued where it stops itself.
int exit_code_under_watch(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    {
      const MeetingWatch watch(2.0, 0, "rank 0 starts MPI");
      body();
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    std::this_thread::sleep_for(milliseconds(2500));
    kill(child, SIGCONT);
    waitpid(child, &status, 0);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MeetingWatch, EndsAProcessThatWaitsForOthers) {
  EXPECT_EQ(exit_code_under_watch([] { wait_forever(); }), 7);
  EXPECT_EQ(exit_code_under_watch([] {}), 0);
  EXPECT_EQ(exit_code_under_watch([] { raise(SIGSTOP); }), 0) << "the process was stopped as a whole";
}

TEST(MeetingWatch, CountsTheTimeInACollectiveOfABox) {
  BlackBox box("", 0, 1);
  EXPECT_EQ(exit_code_under_watch([&] {
              for (int i = 0; i < 5; ++i) {  // together for longer than the watch
                const uint64_t number = box.begin_collective("node_barrier", 0);
                std::this_thread::sleep_for(milliseconds(500));
                box.end_collective("node_barrier", number);
              }
              std::this_thread::sleep_for(milliseconds(2500));  // alone
            }),
            0);
  EXPECT_EQ(exit_code_under_watch([&] {
              box.begin_collective("node_barrier", 0);
              wait_forever();
            }),
            7);
}

TEST(StackDump, NamesFunctionsOfAllThreads) {
  std::promise<void> end;
  std::jthread waiting([future = end.get_future().share()] { future.wait(); });
  std::this_thread::sleep_for(milliseconds(20));
  const std::string text = stacks_of_all_threads();
  EXPECT_NE(text.find("NamesFunctionsOfAllThreads"), std::string::npos) << text;
  EXPECT_NE(text.find("which wrote this"), std::string::npos) << text;
  EXPECT_NE(text.find("std::__basic_future"), std::string::npos) << text;
  end.set_value();
}

// As a bundle starts it on an older system: /proc/self/exe is the loader then.
TEST(StackDump, NamesFunctionsOfAProgramThatTheLoaderStarted) {
  const std::string loader = "/lib64/ld-linux-x86-64.so.2";
  if (!std::filesystem::exists(loader)) GTEST_SKIP() << "there is no " << loader;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  if (self.find("/ld-linux-") != std::string::npos) GTEST_SKIP() << "the loader started this test itself";
  const std::string no_leaks = "ASAN_OPTIONS=detect_leaks=0 ";  // the loader's own memory counts as lost
  const testing::Outcome outcome =
      testing::run_shell(no_leaks + loader + " '" + self + "' --gtest_filter=StackDump.NamesFunctionsOfAllThreads");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

}  // namespace
}  // namespace mantissa
