// Staging: host data on its way to the device. Each upload is copied into pinned memory at once, so that the caller's
// may be reused, and from there by the device when its stream gets to it: the host does not wait, and data can be sent
// ahead of the step that needs it. Downloads come back the same way and are waited for.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/cuda/stream.h"

namespace mantissa::cuda {

class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void upload(const void* host, void* device, size_t bytes, CudaStream& stream);
  void download(const void* device, void* host, size_t bytes, CudaStream& stream);

 private:
  struct Slot {
    std::byte* data = nullptr;
    size_t bytes = 0;
    std::unique_ptr<CudaEvent> passed;  // null: free
  };
  Slot& free_slot(size_t bytes);
  void grow(Slot& slot, size_t bytes);

  std::vector<Slot> slots_;  // the oldest first
  size_t total_bytes_ = 0;
};

}  // namespace mantissa::cuda
