// Asynchronous copies that an emulated thread has started but not waited for. They land as late as a GPU may let them
// land: when the thread waits. Until then the destination is NaN. This exposes both a missing wait and a copy into
// memory that is still being read.
#pragma once

#include <cstddef>
#include <vector>

namespace mantissa::cuda::emulation {

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
