#include "core/base/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

std::recursive_mutex console;  // logging a line may log another line
const ProgressBar* drawn = nullptr;

size_t console_columns() {
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? std::min<size_t>(size.ws_col, kTextColumns) : 80;
}

void write_to_console(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

constexpr const char* kClearLine = "\r\x1b[K";

}  // namespace

ProgressBar::ProgressBar(std::string what, int64_t total) : what_(std::move(what)), total_(total) {
  const std::lock_guard lock(console);
  if (drawn != nullptr || total <= 0 || !is_logged(LogLevel::kInfo) || ::isatty(STDERR_FILENO) != 1) return;
  drawn = this;
  draw();
}

ProgressBar::~ProgressBar() {
  const std::lock_guard lock(console);
  if (drawn != this) return;
  drawn = nullptr;
  write_to_console(kClearLine);
}

void ProgressBar::reach(int64_t done) {
  done_ = std::min(done, total_);
  const std::lock_guard lock(console);
  constexpr std::chrono::milliseconds kLeastPause(100);
  if (drawn != this || Clock::now() - drawn_at_ < kLeastPause) return;
  drawn_at_ = Clock::now();
  draw();
}

void ProgressBar::print(std::string_view text) {
  std::optional<Hidden> hidden;
  if (::isatty(STDOUT_FILENO) == 1) hidden.emplace();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string ProgressBar::line(size_t columns) const {
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  std::string numbers = fmt::format(" {:.0f} %, {} of {}", 100.0 * share, done_, total_);
  if (done_ > 0) {
    const double taken = std::chrono::duration<double>(Clock::now() - start_).count();
    const auto left = static_cast<int64_t>(taken * (1.0 - share) / share);
    numbers += fmt::format(", ends in about {}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60);
  }
  constexpr size_t kWidth = 20;
  const size_t others = what_.size() + numbers.size() + 4;  // blank, brackets, and the last column
  if (others + kWidth > columns) return (what_ + numbers).substr(0, columns - 1);
  const auto full = static_cast<size_t>(share * static_cast<double>(kWidth));
  return fmt::format("{} [{}{}]{}", what_, std::string(full, '#'), std::string(kWidth - full, '.'), numbers);
}

void ProgressBar::draw() const { write_to_console(kClearLine + line(console_columns())); }

ProgressBar::Hidden::Hidden() {
  console.lock();
  if (drawn != nullptr) write_to_console(kClearLine);
}

ProgressBar::Hidden::~Hidden() {
  if (drawn != nullptr) drawn->draw();
  console.unlock();
}

}  // namespace mantissa
