#include "core/cpu/scratch.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include "core/base/error.h"
#include "core/base/round_up.h"

namespace mantissa::cpu {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

void Scratch::grow(size_t bytes) {
  const bool huge = bytes >= kHugePageBytes / 2;
  const size_t alignment = huge ? kHugePageBytes : kAlignmentBytes;
  const size_t rounded = round_up(bytes, alignment);
  data_.reset();
  capacity_bytes_ = 0;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
  if (!data_) {
    throw ConfigError(fmt::format(
        "[cpu memory] cannot get {} bytes for what a thread's kernels work with: use fewer threads, a smaller "
        "batch, context or model, or more ranks",
        rounded));
  }
  if (huge) madvise(data_.get(), rounded, MADV_HUGEPAGE);  // a hint
  capacity_bytes_ = rounded;
}

}  // namespace mantissa::cpu
