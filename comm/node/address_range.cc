#include "comm/node/address_range.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "core/base/error.h"

namespace mantissa {

AddressRange::AddressRange(size_t bytes) : taken_bytes_(bytes + kHugePageBytes), bytes_(bytes) {
  taken_ = mmap(nullptr, taken_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (taken_ == MAP_FAILED) {
    throw CommError(
        fmt::format("{} bytes of addresses for shared memory: {}", bytes, std::generic_category().message(errno)));
  }
  void* begin = taken_;
  size_t room = taken_bytes_;
  data_ = static_cast<std::byte*>(std::align(kHugePageBytes, bytes, begin, room));
}

AddressRange::~AddressRange() { munmap(taken_, taken_bytes_); }

}  // namespace mantissa
