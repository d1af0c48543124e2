#include "tools/run/state/run_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/run/state/resume_choice.h"

namespace mantissa {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw ConfigError(
      fmt::format("train.run_dir: cannot write to folder '{}' ({}): give a folder that can be written", path, reason));
}

}  // namespace

RunFolder::RunFolder(const std::string& path) : path_(path) { hold(); }

RunFolder::~RunFolder() { release(); }

void RunFolder::hold() {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) fail(path_, error.message());
  folder_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // open, its inode is not given to another folder
  lock_ = open((path_ + "/" + kLockName).c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (folder_ < 0 || lock_ < 0) {
    const int reason = errno;
    release();
    fail(path_, std::generic_category().message(reason));
  }
  bool is_held = true;
  // `mantissa status` holds the lock for a moment, too.
  for (int attempt = 0; is_held && attempt < 5; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    is_held = flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }
  if (is_held) {
    const std::string holder = legible(text_of_file(path_ + "/" + kLockName).value_or("").substr(0, 200));
    release();
    throw ConfigError(
        fmt::format("train.run_dir: another job is running in '{}'{}: wait for it, or give another folder. `mantissa "
                    "status {}` shows how far it is",
                    path_, holder.empty() ? "" : " (" + holder + ")", path_));
  }
  // Whoever is refused reads it. On a full disk it stays empty.
  const std::string job = slurm_job(), me = fmt::format("host {}, process {}{}{}", host_name(), getpid(),
                                                        job.empty() ? "" : ", Slurm job ", job);
  [[maybe_unused]] const bool is_told = ::ftruncate(lock_, 0) == 0 && ::write(lock_, me.data(), me.size()) > 0;
  futimens(lock_, nullptr);  // the time of this start, for `mantissa status`
}

void RunFolder::release() {
  for (int* const descriptor : {&folder_, &lock_}) {
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
  }
}

bool RunFolder::is_still_there() const {
  struct stat mine {
  }, there{};
  if (folder_ < 0 || fstat(folder_, &mine) != 0 || stat(path_.c_str(), &there) != 0) return false;
  return mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

void RunFolder::ensure_held() {
  if (is_still_there()) return;
  release();
  // Even if that job has ended: its checkpoints would be taken for this run's.
  for (const char* const name : {"/config.yaml", "/checkpoints"}) {
    if (!std::filesystem::exists(path_ + name)) continue;
    throw CheckpointError(fmt::format(
        "somebody removed '{}' during the run, with its checkpoints, and another job has begun there", path_));
  }
  try {
    hold();
    if (!config_.empty()) write_config_text();
  } catch (const ConfigError& error) {
    throw CheckpointError(
        fmt::format("somebody removed '{}' during the run, with its checkpoints: {}", path_, error.what()));
  }
  log_warn("train.run_dir: somebody removed '{}' during the run; this run goes on in a new folder of that name", path_);
  log_warn("older checkpoints are lost; so are, until the next start, metrics.jsonl, run.log and the black boxes");
}

void RunFolder::write_config(const Config& config) {
  config_ = to_yaml(as_kept(config));
  write_config_text();
}

void RunFolder::write_config_text() const {
  if (const int error = replace_file(path_ + "/config.yaml", config_); error != 0) {
    fail(path_, std::generic_category().message(error));
  }
}

}  // namespace mantissa
