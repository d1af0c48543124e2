#include "tools/train/run_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/base/error.h"

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
  lock_ = open((path + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock_ < 0) fail(path, std::generic_category().message(errno));
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(lock_);
    throw ConfigError(
        fmt::format("train.run_dir: another job is running in '{}': wait for it, or give another folder", path));
  }
}

RunFolder::~RunFolder() { close(lock_); }

void RunFolder::write_config(const Config& config) const {
  const std::string target = path_ + "/config.yaml", partial = target + ".partial";
  std::ofstream file(partial);
  file << to_yaml(config) << std::flush;
  std::error_code error;
  if (file) std::filesystem::rename(partial, target, error);
  if (!file || error) fail(path_, error ? error.message() : "config.yaml was not written whole");
}

}  // namespace mantissa
