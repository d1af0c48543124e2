#include "core/cpu/memory.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/base/error.h"
#include "core/base/host_memory.h"

namespace mantissa::cpu {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

[[noreturn]] void throw_no_memory(size_t bytes, const char* what, int error_number) {
  throw MemoryError(fmt::format("[cpu memory] cannot get {:.1f} MiB for {}: {}. {}. {}",
                                static_cast<double>(bytes) / (1024.0 * 1024.0), what,
                                std::generic_category().message(error_number), describe_host_memory(), kLessMemory));
}

// Anonymous pages, aligned to a huge page: maps one huge page more and unmaps the ends. Requests huge pages only for
// whole ones. Rounding the end up would waste half a huge page per block on average, and there may be hundreds of
// blocks.
std::shared_ptr<Storage> map_pages(size_t bytes, const char* what, Device device, int extra_flags) {
  if (bytes > SIZE_MAX - 2 * kHugePageBytes) throw_no_memory(bytes, what, ENOMEM);
  const size_t size = round_up(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  const size_t mapped = size + kHugePageBytes;
  void* const region = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | extra_flags, -1, 0);
  if (region == MAP_FAILED) throw_no_memory(bytes, what, errno);
  const uintptr_t start = reinterpret_cast<uintptr_t>(region);
  const size_t before = round_up(start, kHugePageBytes) - start;
  auto* const data = static_cast<std::byte*>(region) + before;
  if (before > 0) munmap(region, before);
  if (mapped > before + size) munmap(data + size, mapped - before - size);
  // A hint: a kernel without huge pages uses small ones.
  if (size >= kHugePageBytes) madvise(data, size / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  return std::make_shared<Storage>(data, bytes, device, [data, size] { munmap(data, size); });
}

}  // namespace

std::shared_ptr<Storage> allocate_host(size_t bytes, const char* what, Device device) {
  if (bytes >= kHugePageBytes) return map_pages(bytes, what, device, 0);
  const size_t size = round_up(bytes == 0 ? 1 : bytes, Scratch::kAlignmentBytes);
  void* const data = std::aligned_alloc(Scratch::kAlignmentBytes, size);
  if (data == nullptr) throw_no_memory(bytes, what, ENOMEM);
  std::memset(data, 0, size);
  return std::make_shared<Storage>(static_cast<std::byte*>(data), bytes, device, [data] { std::free(data); });
}

std::shared_ptr<Storage> reserve_host(size_t bytes, Device device) {
  return map_pages(bytes == 0 ? 1 : bytes, "an arena (reserved address space)", device, MAP_NORESERVE);
}

void Scratch::grow(size_t bytes) {
  const bool huge = bytes >= kHugePageBytes / 2;
  const size_t alignment = huge ? kHugePageBytes : kAlignmentBytes;
  const size_t rounded = round_up(bytes, alignment);
  data_.reset();
  capacity_bytes_ = 0;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
  if (!data_) throw_no_memory(rounded, "scratch memory of a thread's kernels", ENOMEM);
  if (huge) madvise(data_.get(), rounded, MADV_HUGEPAGE);  // a hint
  capacity_bytes_ = rounded;
}

}  // namespace mantissa::cpu
