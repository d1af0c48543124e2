// A progress bar in a terminal, among lines of the log.
#include "core/base/progress_bar.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "core/base/log.h"

namespace mantissa {
namespace {

// The standard error of `body` in a child process, on a terminal of `columns` columns (0: a pipe).
std::string drawn_by(unsigned short columns, const std::function<void()>& body) {
  int ends[2] = {-1, -1};
  winsize size{.ws_row = 10, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(columns > 0 ? openpty(&ends[0], &ends[1], nullptr, nullptr, &size) : pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    start_logging(0, 1);
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t bytes = 0; (bytes = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(bytes));
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return text;
}

const std::string kClear = "\r\x1b[K";

TEST(ProgressBar, IsDrawnAndRemoved) {
  const std::string text = drawn_by(80, [] {
    ProgressBar bar("compare: steps", 400);
    bar.reach(100);
  });
  EXPECT_EQ(text.find(kClear + "compare: steps [" + std::string(20, '.') + "] 0 %, 0 of 400"), 0u) << text;
  EXPECT_NE(text.find("compare: steps [#####..............."), std::string::npos) << text;
  EXPECT_NE(text.find(" 25 %, 100 of 400, ends in about 0:00:0"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with(kClear)) << text;
}

TEST(ProgressBar, LinesOfTheLogStandAboveIt) {
  const std::string text = drawn_by(80, [] {
    const ProgressBar bar("plan", 4);
    log_info("a line");
  });
  EXPECT_NE(text.find(kClear + "a line\r\n" + kClear + "plan ["), std::string::npos) << text;
}

TEST(ProgressBar, FitsTheTerminal) {
  for (const unsigned short columns : {20, 45, 60}) {
    const std::string text = drawn_by(columns, [] { const ProgressBar bar("sensitivity: decisions", 1000); });
    const std::string line = text.substr(kClear.size(), text.rfind(kClear) - kClear.size());
    EXPECT_LT(line.size(), columns) << line;
    EXPECT_TRUE(line.starts_with("sensitivity: deci")) << line;
  }
}

TEST(ProgressBar, DrawsNothingWithoutATerminal) {
  const std::string text = drawn_by(0, [] {
    ProgressBar bar("compare", 10);
    bar.advance();
    log_info("a line");
  });
  EXPECT_EQ(text, "a line\n");
}

TEST(ProgressBar, OnlyOneIsDrawn) {
  const std::string text = drawn_by(80, [] {
    ProgressBar outer("outer", 10);
    {
      ProgressBar inner("inner", 10);
      inner.advance();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(150));  // redraws have a least pause
    outer.advance();
    log_info("a line");
  });
  EXPECT_EQ(text.find("inner"), std::string::npos) << text;
  EXPECT_NE(text.find("a line\r\n" + kClear + "outer [##.."), std::string::npos) << text;
}

}  // namespace
}  // namespace mantissa
