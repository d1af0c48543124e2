// Copies that an emulated thread has started and not waited for. They land as late as a GPU may let them land, when the
// thread waits; until then the destination is NaN. So both a missing wait and a copy into memory that is still read
// show.
#pragma once

#include <cstddef>
#include <vector>

namespace mantissa::cuda::emulation {

class AsyncCopies {
 public:
  // `bytes` from `from`, or zeros if that is null.
  void start(void* to, const void* from, size_t bytes);
  // What was started since the last call becomes a group.
  void commit();
  // Lets all but the latest `pending` groups land.
  void wait(size_t pending);

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  std::vector<Copy> copies_;         // that have not landed, in the order of their start
  std::vector<size_t> group_sizes_;  // those of copies_ that are in a group; the others follow
  size_t in_groups_ = 0;
};

}  // namespace mantissa::cuda::emulation
