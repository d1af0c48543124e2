// A block's shared memory. Starts out as NaN, and ends where it was asked to end: an access beyond crashes, or, in the
// few bytes to the next multiple of kSharedAlignmentBytes, is seen by address sanitizer or (a write) by
// end_is_intact().
#pragma once

#include <cstddef>

namespace mantissa::cuda::emulation {

constexpr size_t kSharedAlignmentBytes = 16;  // of the largest access

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
