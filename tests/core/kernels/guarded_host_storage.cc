#include "tests/core/kernels/guarded_host_storage.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

namespace mantissa::kernel_test {
namespace {

constexpr std::byte kGuard{0xa5};

void check_guard(const std::byte* begin, const std::byte* end) {
  for (const std::byte* p = begin; p < end; ++p) {
    if (*p != kGuard) {
      ADD_FAILURE() << "a kernel wrote " << (end - p) << " bytes before its tensor";
      return;
    }
  }
}

// A release must not throw, so an error in queued work would end the program.
void wait_for(Stream& stream) {
  try {
    stream.synchronize();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

}  // namespace

std::shared_ptr<Storage> guarded_host_storage(size_t bytes, Device device, Stream& stream) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t usable = (bytes + page - 1) / page * page + page;  // at least one page of guard bytes in front
  void* const region = mmap(nullptr, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) throw std::runtime_error("[guarded_host_storage] mmap failed");
  std::byte* const start = static_cast<std::byte*>(region);
  if (mprotect(start + usable, page, PROT_NONE) != 0)
    throw std::runtime_error("[guarded_host_storage] mprotect failed");
  std::byte* const data = start + usable - bytes;
  std::memset(start, static_cast<int>(kGuard), usable);
  return std::make_shared<Storage>(data, bytes, device, [start, data, usable, page, &stream] {
    wait_for(stream);
    check_guard(start, data);
    munmap(start, usable + page);
  });
}

}  // namespace mantissa::kernel_test
