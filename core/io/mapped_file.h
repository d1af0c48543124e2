// MappedFile: a file's bytes, read-only, in the address space for as long as the object lives.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace mantissa {

class MappedFile {
 public:
  // std::system_error naming the path if it cannot be opened or is no regular file. An empty file has empty bytes().
  // The file must not shrink while it is mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mantissa
