#include "tools/run/report/output_file.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/io/files.h"
#include "tools/config/config.h"
#include "tools/config/data_paths.h"

namespace mantissa {

OutputFile::OutputFile(const char* option, const std::string& path)
    : option_(option), path_(path), temporary_path_(path) {
  if (path.empty()) return;
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) {
    throw ConfigError(
        fmt::format("{}: {}: expected a file that can be written, got a folder: name a file in it", option, path));
  }
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) {
    temporary_path_ += ".partial";
    std::filesystem::remove(temporary_path_, ignored);  // perhaps a link
  }
  file_.open(temporary_path_);
  if (!file_) throw ConfigError(fmt::format("{}: {}: expected a file that can be written", option, path));
}

OutputFile::~OutputFile() {
  if (std::error_code ignored; replaces_older()) std::filesystem::remove(temporary_path_, ignored);
}

void OutputFile::write(const std::string& text) {
  if (!is_wanted()) return;
  file_ << text;
  file_.close();
  std::error_code failed;
  if (file_ && replaces_older()) std::filesystem::rename(temporary_path_, path_, failed);
  if (!file_ || failed) throw ConfigError(fmt::format("{}: {}: could not be written completely", option_, path_));
  log_info("written: {}", path_);
}

void OutputFile::write(const nlohmann::json& figures) {
  if (is_wanted()) write(figures.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

nlohmann::json read_figures(const std::string& path, const std::string& writer) {
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    throw ConfigError(fmt::format("{}: expected a file that {} wrote with --json, got a folder", path, writer));
  }
  std::ifstream file(path);
  if (!file) throw ConfigError(fmt::format("{}: cannot be opened", path));
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{}: expected a file that {} wrote with --json: {}", path, writer, error.what()));
  }
}

std::vector<NamedFile> files_read(const std::string& path, const Config& config) {
  std::vector<NamedFile> files;
  std::error_code error;  // then it is no folder
  if (const std::string file = configuration_file(path); !std::filesystem::is_directory(file, error)) {
    files.push_back({"the configuration", file});
  }
  const auto add = [&](const std::string& setting, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (std::filesystem::is_directory(name, error)) files.push_back({setting, name});
    }
    for (const std::string& pattern : in_folders(names, config.data.format)) {
      for (const std::string& file : expand_glob(pattern)) files.push_back({setting, file});
    }
  };
  for (const auto& [setting, names] : DataConfig::file_lists(config.data)) add(setting, *names);
  return files;
}

void require_different_files(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read) {
  const auto canonical = [](const std::string& path) {
    std::error_code failed;
    const auto whole = std::filesystem::weakly_canonical(std::filesystem::absolute(path, failed), failed);
    return failed ? std::filesystem::path(path) : whole;
  };
  const auto require_different = [&](const NamedFile& one, const NamedFile& other) {
    if (other.path.empty()) return;
    std::error_code error;  // then it is no folder
    if (std::filesystem::is_directory(other.path, error) &&
        canonical(one.path).parent_path() == canonical(other.path)) {
      throw ConfigError(fmt::format("{} {}: expected a file outside the folder {}, whose files are all {}", one.name,
                                    one.path, other.path, other.name));
    }
    if (canonical(one.path) != canonical(other.path)) return;
    throw ConfigError(fmt::format("{} {} and {} {}: expected two files, got one: choose another path for {}", one.name,
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
