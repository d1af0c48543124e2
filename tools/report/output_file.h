// OutputFile: a report that a verb writes to a file.
#pragma once

#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

namespace mantissa {

// A file that is begun before anything is computed, so that a path which cannot be written is found out at once, and
// that takes the place of an older one when it is complete. What is there and is no file (/dev/stdout, a pipe) is
// written to as it is: another in its place would be no longer the same thing.
class OutputFile {
 public:
  // `option` is of static storage and named in errors: "--json". An empty path: no file. ConfigError for a folder, and
  // for what cannot be written.
  OutputFile(const char* option, const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  bool is_wanted() const { return !path_.empty(); }
  // Once. ConfigError if it cannot be written to its end.
  void write(const std::string& text);
  // Indented, with a line feed behind it. Bytes that are no UTF-8, as paths may have, become U+FFFD.
  void write(const nlohmann::json& data);

 private:
  bool replaces() const { return begun_as_ != path_; }

  const char* option_;
  const std::string path_;
  std::string begun_as_;
  std::ofstream file_;
};

// ConfigError where --json and --html lead to one file, whatever ways they take; either may be empty. What is there and
// is no file (/dev/stdout) takes both in turn.
void require_two_files(const std::string& json, const std::string& html);

}  // namespace mantissa
