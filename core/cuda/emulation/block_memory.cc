#include "core/cuda/emulation/block_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/base/round_up.h"

// Defined by the address sanitizer's runtime, absent without it.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* data, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* data, size_t bytes);
}

namespace mantissa::cuda::emulation {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr int kNan = 0xff;  // a value of this byte throughout is NaN in every floating-point format

}  // namespace

SharedMemory::SharedMemory(size_t bytes) : bytes_(bytes), mapped_bytes_(round_up(bytes, kPageBytes) + kPageBytes) {
  void* const region = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) throw std::bad_alloc();
  region_ = static_cast<std::byte*>(region);
  guard_ = region_ + mapped_bytes_ - kPageBytes;
  data_ = guard_ - round_up(bytes, kSharedAlignmentBytes);
  mprotect(guard_, kPageBytes, PROT_NONE);
  std::memset(data_ + bytes_, kNan, padding());
  if (__asan_poison_memory_region) __asan_poison_memory_region(data_ + bytes_, padding());
}

SharedMemory::~SharedMemory() {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(data_ + bytes_, padding());
  munmap(region_, mapped_bytes_);
}

void SharedMemory::clear() { std::memset(data_, kNan, bytes_); }

bool SharedMemory::end_is_intact() const {
  if (__asan_poison_memory_region) return true;  // it would have ended the program, and permits no read here
  return std::all_of(data_ + bytes_, guard_, [](std::byte b) { return b == std::byte{kNan}; });
}

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
