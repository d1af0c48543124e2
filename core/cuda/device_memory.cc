#include "core/cuda/device_memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "core/base/host_memory.h"

namespace mantissa::cuda {
namespace {

double as_mib(size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

DeviceMemory::DeviceMemory(int device_index)
    : device_{Device::Kind::kCuda, device_index}, pool_(create_pool(device_index)) {}

DeviceMemory::~DeviceMemory() { destroy_pool(pool_); }

std::shared_ptr<Storage> DeviceMemory::allocate(size_t bytes, const std::string& what) {
  return take(
      bytes, what, [bytes] { return allocate_device(bytes); }, free_device);
}

std::shared_ptr<Storage> DeviceMemory::allocate_on(StreamHandle stream, size_t bytes, const std::string& what) {
  return take(
      bytes, what, [=, this] { return allocate_from_pool(pool_, bytes, stream); },
      [stream](void* data) { free_to_pool(data, stream); });
}

template <typename Allocate, typename Free>
std::shared_ptr<Storage> DeviceMemory::take(size_t bytes, const std::string& what, const Allocate& allocate_bytes,
                                            const Free& free_bytes) {
  void* data = nullptr;
  try {
    data = allocate_bytes();
  } catch (const OutOfDeviceMemory&) {
    synchronize_device();  // only then is memory that streams freed to the pool free on the device
    try {
      data = allocate_bytes();
    } catch (const OutOfDeviceMemory&) {
      throw OutOfDeviceMemory(describe_shortage(bytes, what));
    }
  }
  account(what, bytes, 0);
  return std::make_shared<Storage>(static_cast<std::byte*>(data), bytes, device_,
                                   [self = shared_from_this(), data, bytes, what, free_bytes] {
                                     free_bytes(data);
                                     self->account(what, 0, bytes);
                                   });
}

void DeviceMemory::account(const std::string& what, size_t taken, size_t given_back) {
  const std::lock_guard lock(mutex_);
  size_t& held = held_by_[what];
  held = held + taken - given_back;
  held_bytes_ = held_bytes_ + taken - given_back;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
}

size_t DeviceMemory::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

size_t DeviceMemory::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

std::string DeviceMemory::describe_shortage(size_t bytes, const std::string& what) const {
  const MemoryInfo info = memory_info();
  return fmt::format(
      "[cuda] GPU {} is out of memory: '{}' needs {:.1f} MiB, {:.1f} of {:.1f} MiB are free; held here: {}. {}",
      device_.index, what, as_mib(bytes), as_mib(info.free_bytes), as_mib(info.total_bytes), holders(), kLessMemory);
}

std::string DeviceMemory::holders() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<size_t, std::string>> largest;
  for (const auto& [what, bytes] : held_by_) {
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
