// Logging through spdlog to standard error and any file: information of rank 0, warnings and errors of every rank.
//
// These functions hide spdlog: its headers and a single call took longer to compile than the rest of a file.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace mantissa {

// Sets up the default spdlog logger of this process: call once the rank is known. With several ranks, warnings and
// errors carry "[rank r]". Ranks that are threads call it each; other threads have the first caller's rank.
void start_logging(int rank, int ranks);

// Also writes the lines of this process to the end of a file, from now on and those so far (the first 64 KiB):
//   2026-11-27 03:04:05.123 node01 [job 1234] [rank 2] warning: text
// with the job under Slurm, and the rank in warnings and errors of several ranks. All ranks may write to the same file:
// a line is one system call. `first_line` precedes all lines unless it is empty. If the file cannot be opened or
// written, there is a warning and nothing else. Symbolic links are not followed, and files with two names not written.
inline constexpr std::string_view kStartMark = "start: ";  // opens the first line of a start
void log_to_file(const std::string& path, const std::string& first_line);

enum class LogLevel : uint8_t { kDebug = 1, kInfo, kWarning, kError };  // spdlog's numbers

// Whether lines of this level are written.
bool is_logged(LogLevel level);
bool is_first_rank();  // by start_logging()
void log_line(LogLevel level, std::string_view line);
int64_t logged_warnings();  // warnings and errors of this process so far
void flush_log();           // blocks until all logged lines are written

template <typename... Args>
void log_at(LogLevel level, fmt::string_view format, const Args&... args) {
  if (is_logged(level)) log_line(level, fmt::vformat(format, fmt::make_format_args(args...)));
}

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kDebug, format, args...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kInfo, format, args...);
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kWarning, format, args...);
}
// A warning that all ranks have alike: by rank 0.
template <typename... Args>
void log_common_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (is_first_rank()) log_at(LogLevel::kWarning, format, args...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kError, format, args...);
}

// The outermost call of a program: runs `body` and returns 0, or exit_code_of() of an exception, which it logs.
int run_reported(const std::function<void()>& body);

}  // namespace mantissa
