#include "core/io/files.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace mantissa {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, int error) {
  throw std::system_error(error, std::generic_category(), path);
}

// The entries of a folder; none if it cannot be read.
std::vector<fs::directory_entry> list_folder(const std::string& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(*it);
  }
  return entries;
}

// `prefix` is what the pattern's earlier parts have matched, with its slash.
void expand(const std::string& prefix, std::span<const std::string> parts, std::vector<std::string>& out) {
  const std::string& part = parts.front();
  const auto rest = parts.subspan(1);
  std::error_code ignored;
  if (!has_wildcard(part)) {
    if (!rest.empty()) return expand(prefix + part + "/", rest, out);
    if (fs::is_regular_file(prefix + part, ignored)) out.push_back(prefix + part);
    return;
  }
  const bool any_depth = part == "**" && !rest.empty();
  if (any_depth) expand(prefix, rest, out);
  for (const fs::directory_entry& entry : list_folder(prefix)) {
    const std::string name = entry.path().filename().string();
    if (any_depth) {
      const bool is_entered = entry.is_directory(ignored) && !entry.is_symlink(ignored) && name.front() != '.';
      if (is_entered) expand(prefix + name + "/", parts, out);
    } else if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD | FNM_NOESCAPE) == 0) {
      if (rest.empty() && entry.is_regular_file(ignored)) out.push_back(prefix + name);
      if (!rest.empty() && entry.is_directory(ignored)) expand(prefix + name + "/", rest, out);
    }
  }
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, errno);
  struct stat status {};
  int error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  size_ = static_cast<size_t>(status.st_size);
  if (error == 0 && size_ > 0) {
    void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) error = errno;
    if (error == 0) data_ = static_cast<const std::byte*>(address);
  }
  ::close(descriptor);
  if (error != 0) fail(path, error);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

bool has_wildcard(std::string_view pattern) { return pattern.find_first_of("*?[") != std::string_view::npos; }

std::vector<std::string> expand_glob(const std::string& pattern) {
  if (!has_wildcard(pattern)) return {pattern};
  std::vector<std::string> parts, files;
  for (size_t begin = 0; begin <= pattern.size();) {
    const size_t end = std::min(pattern.find('/', begin), pattern.size());
    if (end > begin) parts.push_back(pattern.substr(begin, end - begin));
    begin = end + 1;
  }
  expand(pattern.front() == '/' ? "/" : "", parts, files);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

int replace_file(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  const ssize_t written = ::write(file, text.data(), text.size());
  int error = written < 0 ? errno : written < static_cast<ssize_t>(text.size()) ? ENOSPC : 0;
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(partial.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(partial.c_str());
  return error;
}

}  // namespace mantissa
