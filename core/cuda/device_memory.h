// DeviceMemory: the device memory of one backend, with a record of who holds how much.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/tensor/tensor.h"

namespace mantissa::cuda {

class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  explicit DeviceMemory(Device device) : device_(device) {}

  // 256-byte aligned, uninitialised. Error naming `what`, the request, what is free and what holds the rest when there
  // is none.
  std::shared_ptr<Storage> allocate(size_t bytes, const std::string& what);

 private:
  std::string holders() const;

  const Device device_;
  mutable std::mutex mutex_;  // tensors may go on any thread
  std::map<std::string, size_t> held_bytes_;
};

}  // namespace mantissa::cuda
