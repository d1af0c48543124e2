// A block's shared memory. It starts out as NaN and ends at the requested size. An access beyond the end crashes. In
// the few bytes to the next multiple of kSharedAlignmentBytes, address sanitizer detects it, or end_is_intact() detects
// a write.
#pragma once

#include <cstddef>

namespace mantissa::cuda::emulation {

constexpr size_t kSharedAlignmentBytes = 16;  // the size of the largest access

class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void clear();  // all NaN
  bool end_is_intact() const;

 private:
  size_t padding() const { return static_cast<size_t>(guard_ - data_) - bytes_; }

  const size_t bytes_;
  size_t mapped_bytes_;
  std::byte* region_;
  std::byte* data_;
  std::byte* guard_;  // a page that cannot be accessed
};

}  // namespace mantissa::cuda::emulation
