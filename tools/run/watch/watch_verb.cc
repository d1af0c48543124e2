#include "tools/run/watch/watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "tools/run/metrics/heartbeat.h"

namespace mantissa {
namespace {

void show(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

FrameStyle style_of_terminal() {
  FrameStyle style{.columns = kTextColumns, .rows = 60, .glyphs = glyphs_of_terminal()};
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    style.columns = std::clamp<size_t>(size.ws_col, 40, kTextColumns);
    style.rows = std::max<size_t>(size.ws_row, 6) - 1;  // a line feed at the last row would scroll
  }
  return style;
}

// The terminal's second screen, without a cursor. It is always given back: signals wait for wait_for_signal().
class AlternateScreen {
 public:
  AlternateScreen() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGCONT}) sigaddset(&signals_, signal);
    sigprocmask(SIG_BLOCK, &signals_, &before_);
    show("\x1b[?1049h\x1b[?25l\x1b[2J");
  }
  ~AlternateScreen() {
    show("\x1b[?25h\x1b[?1049l");
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  AlternateScreen(const AlternateScreen&) = delete;
  AlternateScreen& operator=(const AlternateScreen&) = delete;

  // Overwrites the frame before, line by line: clearing it first would flicker.
  void draw(std::string frame) {
    constexpr std::string_view kClearLine = "\x1b[K", kClearBelow = "\x1b[J";
    for (size_t end = frame.find('\n'); end != std::string::npos; end = frame.find('\n', end + kClearLine.size() + 1)) {
      frame.insert(end, kClearLine);
    }
    show("\x1b[H" + frame + std::string(kClearBelow));
  }

  // Whether a signal asks for the end. Returns early when the window changes.
  bool wait_for_signal(double seconds) {
    const timespec limit{.tv_sec = static_cast<time_t>(seconds),
                         .tv_nsec = static_cast<int64_t>(1e9 * (seconds - std::floor(seconds)))};
    const int signal = sigtimedwait(&signals_, nullptr, &limit);
    return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
  }

 private:
  sigset_t signals_{}, before_{};
};

}  // namespace

int watch_verb(const WatchRequest& request) {
  return run_reported([&] {
    std::vector<WatchedRun> runs(request.runs.begin(), request.runs.end());
    const auto refresh = [&runs] {
      for (WatchedRun& run : runs) run.refresh(unix_time());
    };
    refresh();
    if (!request.once && ::isatty(STDOUT_FILENO) == 1) {
      AlternateScreen screen;
      while (std::ranges::any_of(runs, &WatchedRun::is_under_way)) {
        screen.draw(watch_frame(runs, style_of_terminal(), unix_time()));
        if (screen.wait_for_signal(request.interval_s)) break;
        refresh();
      }
    }
    show(watch_frame(runs, style_of_terminal(), unix_time()));  // stays in the terminal
  });
}

}  // namespace mantissa
