// ProgressBar: how far a long loop is, and when it ends, in the last line of a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace mantissa {

// Draws on standard error where that is a terminal and this process logs information (see log.h); else nothing. Log
// lines appear above it. Only one bar is drawn at a time: a second bar draws nothing. For one thread.
class ProgressBar {
 public:
  ProgressBar(std::string what, int64_t total);  // "compare: steps", of so many
  // Removes it.
  ~ProgressBar();
  ProgressBar& operator=(ProgressBar&&) = delete;

  void advance(int64_t by = 1) { reach(done_ + by); }
  void reach(int64_t done);

  // Writes to standard output at once; a bar in the same terminal is hidden meanwhile.
  static void print(std::string_view text);

  // While such an object lives, no bar is in the way of lines of other kinds.
  class Hidden {
   public:
    Hidden();
    ~Hidden();
    Hidden& operator=(Hidden&&) = delete;
  };

 private:
  using Clock = std::chrono::steady_clock;

  // "compare: steps [####......] 42 %, 168 of 400, ends in about 0:01:20", without what does not fit.
  std::string line(size_t columns) const;
  void draw() const;

  const std::string what_;
  const int64_t total_;
  const Clock::time_point start_ = Clock::now();
  int64_t done_ = 0;
  Clock::time_point drawn_at_{};
};

}  // namespace mantissa
