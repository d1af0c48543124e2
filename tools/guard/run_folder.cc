#include "tools/guard/run_folder.h"

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
#include "core/io/files.h"
#include "tools/guard/metrics_prom.h"

namespace mantissa {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw ConfigError(
      fmt::format("train.run_dir: cannot write to folder '{}' ({}): give a folder that can be written", path, reason));
}

}  // namespace

RunFolder::RunFolder(const std::string& path) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, error.message());
  lock_ = open((path + "/" + kLockName).c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (lock_ < 0) fail(path, std::generic_category().message(errno));
  bool is_held = true;
  // `mantissa status` holds the lock for a moment, too.
  for (int attempt = 0; is_held && attempt < 5; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    is_held = flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }
  if (is_held) {
    close(lock_);
    throw ConfigError(
        fmt::format("train.run_dir: another job is running in '{}': wait for it, or give another folder", path));
  }
  futimens(lock_, nullptr);  // the time of this start, for `mantissa status`
}

RunFolder::~RunFolder() { close(lock_); }

void RunFolder::write_config(const Config& config) const {
  if (const int error = replace_file(path_ + "/config.yaml", to_yaml(config)); error != 0) {
    fail(path_, std::generic_category().message(error));
  }
}

}  // namespace mantissa
