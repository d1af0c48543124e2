#include "tools/report/output_file.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "core/base/error.h"
#include "core/base/log.h"

namespace mantissa {

OutputFile::OutputFile(const char* option, const std::string& path) : option_(option), path_(path), begun_as_(path) {
  if (path.empty()) return;
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) {
    throw ConfigError(
        fmt::format("{}: {}: expected a file that can be written, got a folder: name a file in it", option, path));
  }
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) begun_as_ += ".partial";
  file_.open(begun_as_);
  if (!file_) throw ConfigError(fmt::format("{}: {}: expected a file that can be written", option, path));
}

OutputFile::~OutputFile() {
  if (std::error_code ignored; replaces()) std::filesystem::remove(begun_as_, ignored);
}

void OutputFile::write(const std::string& text) {
  file_ << text;
  file_.close();
  std::error_code failed;
  if (file_ && replaces()) std::filesystem::rename(begun_as_, path_, failed);
  if (!file_ || failed) throw ConfigError(fmt::format("{}: {}: could not be written to its end", option_, path_));
  log_info("written: {}", path_);
}

void OutputFile::write(const nlohmann::json& data) {
  write(data.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void require_different_files(const std::vector<NamedFile>& files) {
  const auto real = [](const std::string& path) {
    std::error_code failed;
    const auto whole = std::filesystem::weakly_canonical(std::filesystem::absolute(path, failed), failed);
    return failed ? std::filesystem::path(path) : whole;
  };
  for (size_t i = 0; i < files.size(); ++i) {
    std::error_code ignored;
    if (files[i].path.empty() || std::filesystem::is_other(files[i].path, ignored)) continue;
    for (size_t j = i + 1; j < files.size(); ++j) {
      if (files[j].path.empty() || real(files[i].path) != real(files[j].path)) continue;
      throw ConfigError(fmt::format("{} {} and {} {}: expected two files, got one: name another for one of them",
                                    files[i].name, files[i].path, files[j].name, files[j].path));
    }
  }
}

}  // namespace mantissa
