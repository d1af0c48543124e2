// Places where tests (configuration section `test`) make file operations fail. Unused, one costs a load and a branch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace mantissa {

enum class FileOperation : uint8_t { kNone, kOpen, kRead, kWrite, kSync, kClose, kRename };

// Any thread may call it.
class FileFaultInjector {
 public:
  virtual ~FileFaultInjector() = default;
  // Called before an operation on a file, or on the folder that is renamed. Returns the errno with which the operation
  // fails; 0: it takes place. May lower `bytes`, the size of the next system call, to at least 1.
  virtual int before(FileOperation operation, const std::string& path, size_t& bytes) = 0;
};

namespace internal {
inline std::atomic<FileFaultInjector*> file_fault_injector = nullptr;
}  // namespace internal

// Returns the previous injector. An injector must outlive the operations that started with it.
inline FileFaultInjector* set_file_fault_injector(FileFaultInjector* injector) {
  return internal::file_fault_injector.exchange(injector);
}

inline int file_fault(FileOperation operation, const std::string& path, size_t& bytes) {
  FileFaultInjector* const injector = internal::file_fault_injector.load(std::memory_order_acquire);
  if (injector == nullptr) [[likely]]
    return 0;
  return injector->before(operation, path, bytes);
}
inline int file_fault(FileOperation operation, const std::string& path) {
  size_t bytes = 0;
  return file_fault(operation, path, bytes);
}

}  // namespace mantissa
