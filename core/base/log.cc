#include "core/base/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/host_memory.h"
#include "core/base/process.h"
#include "core/base/progress_bar.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

struct Rank {
  std::string text{};  // "[rank 1] " if there are several ranks
  LogLevel least = LogLevel::kInfo;
};
std::optional<Rank> rank_of_process;
thread_local std::optional<Rank> rank_of_thread;

const Rank& this_rank() {
  static const Rank kNone;
  return rank_of_thread ? *rank_of_thread : rank_of_process ? *rank_of_process : kNone;
}

std::atomic<int64_t> warning_count = 0;

spdlog::level::level_enum to_spdlog(LogLevel level) { return static_cast<spdlog::level::level_enum>(level); }

// "warning: " and "error: ". Only these levels show their name and the rank.
std::string_view name_of(LogLevel level) {
  return level < LogLevel::kWarning ? "" : level == LogLevel::kWarning ? "warning: " : "error: ";
}

std::string_view rank_of(LogLevel level) {
  return level < LogLevel::kWarning ? std::string_view() : std::string_view(this_rank().text);
}

// mpirun takes what its ranks write from pipes, to its own standard error.
bool is_on_console() {
  struct stat status {};
  if (::isatty(STDERR_FILENO) == 1) return true;
  if (::fstat(STDERR_FILENO, &status) != 0 || !S_ISFIFO(status.st_mode)) return false;
  const Launcher launcher = find_launcher();
  std::error_code error;  // it has ended, or belongs to somebody else
  const std::string file = fmt::format("/proc/{}/fd/{}", launcher.process, STDERR_FILENO);
  return launcher.process > 0 && std::filesystem::read_symlink(file, error).string().starts_with("/dev/pts/");
}

void write_to_stderr(LogLevel level, std::string_view line) {
  std::string text = fmt::format("{}{}{}", name_of(level), rank_of(level), line);
  // A console gets wrapped lines, a file or a pipe whole lines. Information is not wrapped: it may be a sample of text.
  if (level >= LogLevel::kWarning && is_on_console()) text = wrapped(text);
  const ProgressBar::Hidden hidden;
  spdlog::default_logger_raw()->log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

class LogFile {
 public:
  void open(const std::string& path, const std::string& first_line) {
    const std::lock_guard lock(mutex_);
    if (descriptor_ >= 0) ::close(descriptor_);
    path_ = path;
    has_failed_ = false;
    std::string obstacle = why_not_to_write(path);
    constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    descriptor_ = obstacle.empty() ? ::open(path.c_str(), kFlags, 0666) : -1;
    if (obstacle.empty() && descriptor_ < 0) obstacle = std::generic_category().message(errno);
    if (!obstacle.empty()) fail(obstacle);
    const std::string kept = std::exchange(kept_, "");
    keeps_ = false;
    if (!first_line.empty()) append(start_of_line() + first_line + "\n");
    if (!kept.empty()) append(kept);
  }

  void write(LogLevel level, std::string_view line) {
    const std::lock_guard lock(mutex_);
    if (descriptor_ < 0 && !keeps_) return;
    const std::string text = fmt::format("{}{}{}{}\n", start_of_line(), rank_of(level), name_of(level), line);
    if (descriptor_ >= 0) {
      append(text);
    } else if (kept_.size() < kKeptBytes) {
      kept_ += text;
    }
  }

 private:
  static constexpr size_t kKeptBytes = size_t{64} << 10;

  std::string start_of_line() const {
    const auto now = std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
    const auto milliseconds = now.time_since_epoch().count() % 1000;
    return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03} {}", fmt::localtime(std::chrono::system_clock::to_time_t(now)),
                       milliseconds, place_);
  }

  // One call for a line: other ranks' lines do not get into it.
  void append(const std::string& text) {
    if (descriptor_ < 0) return;
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    struct stat status {};
    if (written != static_cast<ssize_t>(text.size())) {
      fail(std::generic_category().message(written < 0 ? errno : ENOSPC));
    } else if (::fstat(descriptor_, &status) == 0 && status.st_nlink == 0) {
      fail("somebody removed it");
    }
  }

  void fail(const std::string& reason) {
    if (std::exchange(has_failed_, true)) return;
    ++warning_count;
    write_to_stderr(LogLevel::kWarning, fmt::format("the log cannot be written to {}: {}", path_, reason));
  }

  std::mutex mutex_;
  const std::string place_ = host_name() + " " + (slurm_job().empty() ? "" : fmt::format("[job {}] ", slurm_job()));
  std::string path_;
  int descriptor_ = -1;
  bool has_failed_ = false;
  bool keeps_ = true;  // until a file is opened for the first time
  std::string kept_;
};

// It is never destroyed: threads may log until the process ends.
LogFile& log_file() {
  static LogFile& file = *new LogFile;
  return file;
}

}  // namespace

void start_logging(int rank, int ranks) {
  rank_of_thread = Rank{.text = ranks > 1 ? fmt::format("[rank {}] ", rank) : "",
                        .least = rank == 0 ? LogLevel::kInfo : LogLevel::kWarning};
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  static const std::thread::id first = std::this_thread::get_id();
  if (first != std::this_thread::get_id()) return;
  rank_of_process = rank_of_thread;
  auto logger = std::make_shared<spdlog::logger>("mantissa", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

bool is_logged(LogLevel level) { return level >= this_rank().least && spdlog::should_log(to_spdlog(level)); }

bool is_first_rank() { return this_rank().least <= LogLevel::kInfo; }

void log_to_file(const std::string& path, const std::string& first_line) { log_file().open(path, first_line); }

void log_line(LogLevel level, std::string_view line) {
  if (!is_logged(level)) return;
  if (level >= LogLevel::kWarning) ++warning_count;
  log_file().write(level, line);  // first: nobody may read standard error
  write_to_stderr(level, line);
}

int64_t logged_warnings() { return warning_count; }

void flush_log() { spdlog::default_logger()->flush(); }

int run_reported(const std::function<void()>& body) {
  try {
    body();
    return static_cast<int>(ExitCode::kOk);
  } catch (const std::exception& exception) {
    log_error("{}", message_of(exception));
    return static_cast<int>(exit_code_of(exception));
  }
}

}  // namespace mantissa
