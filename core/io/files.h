// Files: mapping them, writing bytes to them, and finding them by patterns.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace mantissa {

// Receives the bytes of a serialiser.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // Takes all bytes or throws.
  virtual void write(std::span<const std::byte> bytes) = 0;
};

// A file's bytes, read-only, mapped into memory for the object's lifetime.
class MappedFile {
 public:
  // std::system_error naming the path if it cannot be opened or is no regular file. An empty file has empty bytes().
  // The file must not shrink while it is mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Maps the file. Throws FileError with the system's reason if it cannot.
template <typename FileError>
MappedFile map_file(const std::string& path) {
  try {
    return MappedFile(path);
  } catch (const std::system_error& error) {
    throw FileError(fmt::format("{}: cannot read the file: {}", path, error.code().message()));
  }
}

// Whether the text holds a wildcard: * ? or [.
bool has_wildcard(std::string_view pattern);

// The regular files that match: * ? [a-z] within one folder, ** for any number of folders. Sorted by bytes, so that
// every machine and rank gets the same order. Names that start with '.' need a pattern that does; ** does not follow
// links to folders. A pattern without wildcards is returned as it is, whether or not the file exists: opening it gives
// the reason.
std::vector<std::string> expand_glob(const std::string& pattern);

// Replaces a file at once, for readers, but leaves it to the system when the disk has it. No link is followed. Returns
// 0 or errno.
int replace_file(const std::string& path, const std::string& text);

}  // namespace mantissa
