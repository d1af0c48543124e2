#include "core/kernels/reduction/block_stats_cpu.h"

#include <algorithm>
#include <cstring>

#include "core/cpu/parallel.h"
#include "core/kernels/check_args.h"

namespace mantissa::cpu {
namespace {

// Kept between calls, so that the steady state allocates nothing.
std::vector<TensorStats>& memory_of_this_thread() {
  thread_local std::vector<TensorStats> memory;
  return memory;
}

}  // namespace

BlockStats::BlockStats(int64_t n) : blocks_(memory_of_this_thread()) {
  blocks_.assign(static_cast<size_t>(divide_up(n, kBlockElements)), TensorStats{});
}

TensorStats& BlockStats::operator[](int64_t begin) { return blocks_[static_cast<size_t>(begin / kBlockElements)]; }

void BlockStats::add_to(const Tensor& record, int64_t index_offset) const {
  auto stats = read_record<TensorStats>(record);
  for (const TensorStats& block : blocks_) {
    if (block.first_bad != TensorStats::kNone) {
      stats.first_bad = std::min(stats.first_bad, block.first_bad + index_offset);
    }
    stats.nan_count += block.nan_count;
    stats.inf_count += block.inf_count;
    stats.sum_squares += block.sum_squares;
  }
  std::memcpy(record.raw(), &stats, sizeof(stats));
}

}  // namespace mantissa::cpu
