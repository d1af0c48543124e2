#include "core/cuda/device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/cuda/runtime.h"

namespace mantissa::cuda {
namespace {

double as_mib(size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::shared_ptr<Storage> DeviceMemory::allocate(size_t bytes, const std::string& what) {
  void* data = nullptr;
  try {
    data = allocate_device(bytes);
  } catch (const OutOfDeviceMemory&) {
    const MemoryInfo info = memory_info();
    throw OutOfDeviceMemory(fmt::format(
        "[cuda] GPU {} is out of memory: '{}' needs {:.1f} MiB, {:.1f} of {:.1f} MiB are free; held here: {}. "
        "Lower train.micro_batch or model sizes, or use more ranks",
        device_.index, what, as_mib(bytes), as_mib(info.free_bytes), as_mib(info.total_bytes), holders()));
  }
  {
    const std::lock_guard lock(mutex_);
    held_bytes_[what] += bytes;
  }
  return std::make_shared<Storage>(static_cast<std::byte*>(data), bytes, device_,
                                   [self = shared_from_this(), data, bytes, what] {
                                     free_device(data);
                                     const std::lock_guard lock(self->mutex_);
                                     self->held_bytes_[what] -= bytes;
                                   });
}

std::string DeviceMemory::holders() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<size_t, std::string>> largest;
  for (const auto& [what, bytes] : held_bytes_) {
    if (bytes > 0) largest.emplace_back(bytes, what);
  }
  if (largest.empty()) return "nothing";
  std::sort(largest.rbegin(), largest.rend());
  std::string text;
  for (const auto& [bytes, what] : largest) {
    text += fmt::format("{}{} {:.1f} MiB", text.empty() ? "" : ", ", what, as_mib(bytes));
  }
  return text;
}

}  // namespace mantissa::cuda
