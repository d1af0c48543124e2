#include "tools/lab/report/output_file.h"

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

void require_different_files(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read) {
  const auto real = [](const std::string& path) {
    std::error_code failed;
    const auto whole = std::filesystem::weakly_canonical(std::filesystem::absolute(path, failed), failed);
    return failed ? std::filesystem::path(path) : whole;
  };
  const auto require_different = [&](const NamedFile& one, const NamedFile& other) {
    if (other.path.empty() || real(one.path) != real(other.path)) return;
    throw ConfigError(fmt::format("{} {} and {} {}: expected two files, got one: name another for {}", one.name,
                                  one.path, other.name, other.path, one.name));
  };
  for (size_t i = 0; i < written.size(); ++i) {
    std::error_code ignored;
    if (written[i].path.empty() || std::filesystem::is_other(written[i].path, ignored)) continue;
    for (size_t j = i + 1; j < written.size(); ++j) require_different(written[i], written[j]);
    for (const NamedFile& input : read) require_different(written[i], input);
  }
}

}  // namespace mantissa
