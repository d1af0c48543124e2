// OutputFile: a file that a verb writes a report to.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mantissa {

struct Config;

// Opened before anything is computed, so that a path that cannot be written fails at once. It replaces an older file
// only when it is complete. Anything that is not a regular file (/dev/stdout, a pipe) is written in place.
class OutputFile {
 public:
  // `option` has static storage and names the file in errors: "--json". An empty path means no file: write() does
  // nothing. ConfigError for a folder and for a path that cannot be written.
  OutputFile(const char* option, const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  bool is_wanted() const { return !path_.empty(); }
  // At most once. ConfigError if the file cannot be written completely.
  void write(const std::string& text);
  // Indented, with a final line feed. NaN and Inf become null; bytes that are not UTF-8, as paths may have, become
  // U+FFFD.
  void write(const nlohmann::json& figures);

 private:
  bool replaces_older() const { return temporary_path_ != path_; }

  const char* option_;
  const std::string path_;
  std::string temporary_path_;
  std::ofstream file_;
};

// Figures that `writer`, named in errors, wrote with --json. ConfigError for a folder, a file that cannot be read, and
// what is no JSON.
nlohmann::json read_figures(const std::string& path, const std::string& writer = "a verb");

struct NamedFile {
  std::string name;  // in errors: "--json"
  std::string path;  // empty: none
};

// The files that a verb reads: the configuration, in a run folder if `path` is one, and the data that it names, with
// folders that stand for their files. DataError as in_folders().
std::vector<NamedFile> files_read(const std::string& path, const Config& config);

// ConfigError if an output file is also another output or an input, or would lie in a folder of inputs, however the
// paths are written. Several outputs may share something that is not a regular file (/dev/stdout).
void require_different_files(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);

}  // namespace mantissa
