// Logging through spdlog: information from rank 0 only, warnings and errors from every rank with its number.
//
// These functions hide spdlog: in each file that named it, its headers and the code of one call took longer to compile
// than the rest of the file.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace mantissa {

// Sets up the default spdlog logger of this process: call once the rank is known. Writes to standard error. If there
// are several ranks, warnings and errors carry "[rank r]".
void start_logging(int rank, int ranks);

enum class LogLevel : uint8_t { kDebug = 1, kInfo, kWarning, kError };  // spdlog's numbers

// Whether lines of this level are written.
bool is_logged(LogLevel level);
void log_line(LogLevel level, std::string_view line);
// Blocks until all logged lines are written.
void flush_log();

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
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kError, format, args...);
}

// The outermost call of a program: runs `body` and returns the exit code, 0 on success. Logs an exception and returns
// the code of an Error, else kInternal.
int run_reported(const std::function<void()>& body);

}  // namespace mantissa
