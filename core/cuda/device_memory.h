// DeviceMemory: all memory that one backend takes from its device, with a record of who holds how much.
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

  // Both: 256-byte aligned, uninitialised. OutOfDeviceMemory naming `what`, the request, what is free and what holds
  // the rest when there is none.
  //
  // For any stream, until the last tensor goes; that waits for the device.
  std::shared_ptr<Storage> allocate(size_t bytes, const std::string& what);
  // For work of `stream` alone, which must live longer. It is given back in the stream's order: nobody waits. Neither
  // is possible while the stream is captured.
  std::shared_ptr<Storage> allocate_on(StreamHandle stream, size_t bytes, const std::string& what);

  size_t held_bytes() const;
  size_t peak_bytes() const;  // the most that was held at once

 private:
  template <typename Allocate, typename Free>
  std::shared_ptr<Storage> take(size_t bytes, const std::string& what, const Allocate& allocate_bytes,
                                const Free& free_bytes);
  void account(const std::string& what, size_t taken, size_t given_back);
  std::string describe_shortage(size_t bytes, const std::string& what) const;
  std::string holders() const;

  const Device device_;
  const PoolHandle pool_;
  mutable std::mutex mutex_;  // tensors may go on any thread
  std::map<std::string, size_t> held_by_;
  size_t held_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace mantissa::cuda
