// Memory of an emulated block: its shared memory, and the asynchronous copies of its threads.
#pragma once

#include <cstddef>
#include <vector>

namespace mantissa::cuda::emulation {

constexpr size_t kSharedAlignmentBytes = 16;  // the size of the largest access

// A block's shared memory. It starts out as NaN and ends at the requested size. An access beyond the end crashes. In
// the few bytes to the next multiple of kSharedAlignmentBytes, address sanitizer detects it, or end_is_intact() detects
// a write.
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

// Asynchronous copies that an emulated thread has started but not waited for. They land as late as a GPU may let them
// land: when the thread waits. Until then the destination is NaN. This exposes both a missing wait and a copy into
// memory that is still being read.
class AsyncCopies {
 public:
  // Copies `bytes` from `from`; writes zeros if `from` is null.
  void start(void* to, const void* from, size_t bytes);
  // Makes a group of the copies started since the last call.
  void commit();
  // Lets all but the latest `pending` groups land.
  void wait(size_t pending);

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  std::vector<Copy> copies_;         // not landed yet, in the order of their start
  std::vector<size_t> group_sizes_;  // groups at the front of copies_; ungrouped copies follow
  size_t in_groups_ = 0;
};

}  // namespace mantissa::cuda::emulation
