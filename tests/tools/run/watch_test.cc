// Frames of prepared runs, and the program in a terminal of its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <sstream>

#include "core/base/wrapped_text.h"
#include "tests/tools/run/prepared_run.h"
#include "tools/run/watch/watch.h"

namespace mantissa::testing {
namespace {

std::vector<std::string> frame_lines(const std::vector<std::string>& folders, const FrameStyle& style) {
  std::vector<WatchedRun> runs(folders.begin(), folders.end());
  for (WatchedRun& run : runs) run.refresh(PreparedRun::now());
  std::istringstream text(watch_frame(runs, style, PreparedRun::now()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

const std::string* line_with(const std::vector<std::string>& lines, const std::string& part) {
  for (const std::string& line : lines) {
    if (line.find(part) != std::string::npos) return &line;
  }
  return nullptr;
}

TEST(WatchFrame, OneRunHasItsVerdictAndCurves) {
  PreparedRun run("frame");
  run.add_steps(1, 200);
  for (const int64_t step : {0, 100, 200}) run.add({{"event", "validation"}, {"step", step}, {"loss", 2.5}});
  run.beats(200, 400, RunProgress::kRunning);
  const auto lines = frame_lines({run.path}, {.columns = 100, .rows = 40});
  EXPECT_TRUE(lines.at(0).starts_with("running: step 200 of 400, loss 1.2500, 27.8k tok/s, ends in about 1:00:"))
      << lines[0];
  EXPECT_NE(line_with(lines, "] 50 %"), nullptr);
  for (const char* name : {"loss  ", "validation loss", "gradient norm", "loss scale", "tokens/s"}) {
    EXPECT_NE(line_with(lines, name), nullptr) << name;
  }
  const std::string* const norm = line_with(lines, "gradient norm");
  ASSERT_NE(norm, nullptr);
  EXPECT_NE(norm->find("       30 "), std::string::npos) << "the spike of one step: " << *norm;
  const std::string* const skips = line_with(lines, "skipped steps");
  ASSERT_NE(skips, nullptr);
  EXPECT_NE(skips->find(" 5       ×"), std::string::npos) << *skips;
  EXPECT_NE(line_with(lines, "last skip: step 180: gradient blocks.0.mlp.up.weight[7] is Inf"), nullptr);
}

TEST(WatchFrame, FitsEveryTerminal) {
  PreparedRun run("sizes"), long_name("a_name_that_is_much_longer_than_a_column_of_the_table_may_be");
  for (PreparedRun* one : {&run, &long_name}) {
    one->add_steps(1, 200);
    one->beats(200, 400, RunProgress::kRunning);
  }
  for (const size_t columns : {40u, 80u, 120u}) {
    for (const size_t rows : {6u, 24u, 60u}) {
      for (const auto& runs : {std::vector<std::string>{run.path}, {run.path, long_name.path}}) {
        const auto lines = frame_lines(runs, {.columns = columns, .rows = rows, .glyphs = Glyphs::kAscii});
        EXPECT_LE(lines.size(), rows);
        for (const std::string& line : lines) {
          EXPECT_LE(columns_of(line), columns) << line;
          EXPECT_TRUE(std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; })) << line;
        }
      }
    }
  }
}

TEST(WatchFrame, SeveralRunsAreATable) {
  PreparedRun done("table_done"), running("table_running"), starting("table_starting");
  done.add_steps(1, 100);
  done.beats(100, 100, RunProgress::kDone);
  running.add_steps(1, 30);
  running.beats(30, 100, RunProgress::kRunning);
  starting.beats(0, 100, RunProgress::kRunning);
  const auto lines = frame_lines({done.path, running.path, starting.path}, {.columns = 120, .rows = 24});
  EXPECT_EQ(lines.at(0), "2 of 3 runs under way");
  EXPECT_EQ(lines.size(), 5u);
  EXPECT_NE(line_with(lines, "done         100/100   1.2500"), nullptr) << lines[2];
  EXPECT_NE(line_with(lines, "running          30/100"), nullptr) << lines[3];
  EXPECT_NE(line_with(lines, " 1:00:"), nullptr) << "ends in an hour";
  EXPECT_NE(lines[2].find("█"), std::string::npos) << "the loss";
}

TEST(WatchFrame, ARunWithoutStepsSaysSo) {
  PreparedRun run("empty");
  run.beats(0, 100, RunProgress::kRunning);
  EXPECT_NE(line_with(frame_lines({run.path}, {}), "no step is done yet"), nullptr);
}

// The program in a terminal of 100 columns and 30 rows.
class TerminalSession {
 public:
  explicit TerminalSession(const std::vector<std::string>& arguments) {
    winsize size{.ws_row = 30, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    const std::string command = "LC_ALL=C.UTF-8 exec " + command_line(program_under_test(), arguments);
    child_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    if (child_ == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~TerminalSession() { ::close(terminal_); }
  TerminalSession(const TerminalSession&) = delete;
  TerminalSession& operator=(const TerminalSession&) = delete;

  // Waits until the output after the last call's contains this text, and returns the output up to there; empty if it
  // never does.
  std::string read_until(const std::string& text) {
    size_t at = 0;
    for (pollfd ready{.fd = terminal_, .events = POLLIN, .revents = 0};
         (at = unread_.find(text)) == std::string::npos;) {
      char buffer[4096];
      const ssize_t bytes = ::poll(&ready, 1, 60000) > 0 ? ::read(terminal_, buffer, sizeof(buffer)) : 0;
      if (bytes <= 0) return "";
      unread_.append(buffer, static_cast<size_t>(bytes));
    }
    std::string seen = unread_.substr(0, at + text.size());
    unread_.erase(0, seen.size());
    return seen;
  }
  void type(char key) { EXPECT_EQ(::write(terminal_, &key, 1), 1); }
  void resize(uint16_t columns) {
    const winsize size{.ws_row = 30, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(terminal_, TIOCSWINSZ, &size);
  }
  int exit_code() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int terminal_ = -1;
  pid_t child_ = -1;
  std::string unread_;
};

constexpr const char *kEnter = "\x1b[?1049h", *kLeave = "\x1b[?1049l", *kFrameEnd = "\x1b[J";

TEST(Watch, RedrawsAndIsEndedByCtrlC) {
  PreparedRun run("terminal");
  run.add_steps(1, 100);
  run.beats(100, 400, RunProgress::kRunning);
  TerminalSession session({"watch", run.path, "--interval", "0.1"});
  const std::string first = session.read_until(kFrameEnd);
  EXPECT_NE(first.find(kEnter), std::string::npos);
  EXPECT_NE(first.find("running: step 100 of 400"), std::string::npos) << first;
  EXPECT_EQ(first.find("\x1b[2J", first.find("running:")), std::string::npos) << "it would flicker";
  run.beats(101, 400, RunProgress::kRunning);
  EXPECT_NE(session.read_until("step 101 of 400"), "");
  session.type('\x03');
  EXPECT_NE(session.read_until(kLeave), "");
  EXPECT_NE(session.read_until("running: step 101 of 400"), "") << "the last frame stays";
  EXPECT_EQ(session.exit_code(), 0);
}

TEST(Watch, TakesTheNewWidthAtOnceAndEndsWithTheRun) {
  PreparedRun run("resized");
  run.add_steps(1, 100);
  run.beats(100, 400, RunProgress::kRunning);
  TerminalSession session({"watch", run.path, "--interval", "3600"});
  const auto widest = [](const std::string& frame) {
    constexpr std::string_view kHome = "\x1b[H";
    std::istringstream lines(frame.substr(frame.rfind(kHome) + kHome.size()));
    size_t columns = 0;
    for (std::string line; std::getline(lines, line);) {
      columns = std::max(columns, columns_of(line.substr(0, line.find('\x1b'))));
    }
    return columns;
  };
  EXPECT_GT(widest(session.read_until(kFrameEnd)), 80u);
  session.resize(60);
  const size_t narrow = widest(session.read_until(kFrameEnd));
  EXPECT_GT(narrow, 40u);
  EXPECT_LE(narrow, 60u);
  run.beats(400, 400, RunProgress::kDone);
  session.resize(61);  // the next look comes early
  EXPECT_NE(session.read_until("done: step 400 of 400"), "");
  EXPECT_EQ(session.exit_code(), 0);
}

TEST(Watch, PrintsOneFrameWithoutATerminal) {
  PreparedRun run("piped");
  run.add_steps(1, 100);
  run.beats(100, 400, RunProgress::kRunning);
  const Outcome shown = run_program(1, {"watch", run.path});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_TRUE(shown.output.starts_with("running: step 100 of 400")) << shown.output;
  EXPECT_EQ(shown.output.find('\x1b'), std::string::npos);
  TerminalSession once({"watch", run.path, "--once"});
  EXPECT_NE(once.read_until("running: step 100 of 400"), "");
  EXPECT_EQ(once.exit_code(), 0);
  EXPECT_EQ(run_program(1, {"watch", run.path, run.path + "/missing"}).exit_code, 2);
}

}  // namespace
}  // namespace mantissa::testing
