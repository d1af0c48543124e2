// DeviceMemory: all memory that a backend allocates on its device, with a record of its use by purpose.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/cuda/runtime/runtime.h"
#include "core/tensor/tensor.h"

namespace mantissa::cuda {

class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  explicit DeviceMemory(int device_index);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  int device_index() const { return device_.index; }

  // Both return 256-byte aligned, uninitialised memory. They throw OutOfDeviceMemory with `what`, the request, the free
  // memory and the purposes that hold the rest.
  //
  // For any stream. It is freed with its last tensor, which waits for the device.
  std::shared_ptr<Storage> allocate(size_t bytes, const std::string& what);
  // For work of `stream` only, which must outlive it. It is freed in the stream's order, without a wait. Neither
  // allocation nor release is possible while the stream is captured.
  std::shared_ptr<Storage> allocate_on(StreamHandle stream, size_t bytes, const std::string& what);

  size_t held_bytes() const;
  size_t peak_bytes() const;  // the maximum so far

 private:
  template <typename Allocate, typename Free>
  std::shared_ptr<Storage> take(size_t bytes, const std::string& what, const Allocate& allocate_bytes,
                                const Free& free_bytes);
  void account(const std::string& what, size_t taken, size_t given_back);
  std::string describe_shortage(size_t bytes, const std::string& what) const;
  std::string holders() const;

  const Device device_;
  const PoolHandle pool_;
  mutable std::mutex mutex_;  // tensors may be destroyed on any thread
  std::map<std::string, size_t> held_by_;
  size_t held_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace mantissa::cuda
