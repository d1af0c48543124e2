#include "core/cuda/emulation/async_copies.h"

#include <cstring>

namespace mantissa::cuda::emulation {

void AsyncCopies::start(void* to, const void* from, size_t bytes) {
  std::memset(to, 0xff, bytes);
  copies_.push_back({to, from, bytes});
}

void AsyncCopies::commit() {
  group_sizes_.push_back(copies_.size() - in_groups_);
  in_groups_ = copies_.size();
}

void AsyncCopies::wait(size_t pending) {
  if (group_sizes_.size() <= pending) return;
  const auto groups_end = group_sizes_.end() - static_cast<ptrdiff_t>(pending);
  size_t landing = 0;
  for (auto size = group_sizes_.begin(); size != groups_end; ++size) landing += *size;
  for (size_t i = 0; i < landing; ++i) {
    const Copy& copy = copies_[i];
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, copy.bytes);
    } else {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<ptrdiff_t>(landing));
  group_sizes_.erase(group_sizes_.begin(), groups_end);
  in_groups_ -= landing;
}

}  // namespace mantissa::cuda::emulation
