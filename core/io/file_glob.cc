#include "core/io/file_glob.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace mantissa {
namespace {

namespace fs = std::filesystem;

struct Entry {
  std::string name;
  bool is_folder;       // links followed
  bool is_real_folder;  // not a link
  bool is_file;         // links followed
};

std::vector<Entry> list_folder(const std::string& folder) {
  std::vector<Entry> entries;
  std::error_code error;  // a folder that cannot be read matches nothing
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    entries.push_back({it->path().filename().string(), it->is_directory(ignored),
                       it->is_directory(ignored) && !it->is_symlink(ignored), it->is_regular_file(ignored)});
  }
  return entries;
}

// `prefix` is what the pattern's earlier parts have matched, with its slash.
void expand(const std::string& prefix, const std::vector<std::string>& parts, size_t index,
            std::vector<std::string>& out) {
  const std::string& part = parts[index];
  const bool last = index + 1 == parts.size();
  if (part == "**" && !last) {
    expand(prefix, parts, index + 1, out);
    for (const Entry& entry : list_folder(prefix)) {
      if (entry.is_real_folder && entry.name.front() != '.') expand(prefix + entry.name + "/", parts, index, out);
    }
    return;
  }
  if (!has_wildcard(part)) {
    std::error_code ignored;
    if (!last) {
      expand(prefix + part + "/", parts, index + 1, out);
    } else if (fs::is_regular_file(prefix + part, ignored)) {
      out.push_back(prefix + part);
    }
    return;
  }
  for (const Entry& entry : list_folder(prefix)) {
    if (::fnmatch(part.c_str(), entry.name.c_str(), FNM_PERIOD | FNM_NOESCAPE) != 0) continue;
    if (!last && entry.is_folder) expand(prefix + entry.name + "/", parts, index + 1, out);
    if (last && entry.is_file) out.push_back(prefix + entry.name);
  }
}

}  // namespace

bool has_wildcard(std::string_view pattern) { return pattern.find_first_of("*?[") != std::string_view::npos; }

std::vector<std::string> expand_glob(const std::string& pattern) {
  if (!has_wildcard(pattern)) return {pattern};
  std::vector<std::string> parts;
  std::string prefix = pattern.front() == '/' ? "/" : "";
  for (size_t begin = 0; begin <= pattern.size();) {
    const size_t end = std::min(pattern.find('/', begin), pattern.size());
    if (end > begin) parts.push_back(pattern.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<std::string> files;
  expand(prefix, parts, 0, files);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace mantissa
