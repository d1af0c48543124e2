// OutputFile: a report that a verb writes to a file.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

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

struct NamedFile {
  std::string name;  // in errors: "--json"
  std::string path;  // empty: none
};

// ConfigError where a file that is written is another one of them or one that is read, whatever ways lead there. What
// is there and is no file (/dev/stdout) takes several in turn.
void require_different_files(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);

}  // namespace mantissa
