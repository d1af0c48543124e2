// Gradient statistics: the pass of tensor_stats-inl.h over a tensor, block by block.
#include <vector>

#include "core/kernels/check_args.h"
#include "core/kernels/reduction/block_stats_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/reduction/tensor_stats_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/reduction/tensor_stats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// blocks: statistics of each block of parallel_blocks().
void tensor_stats_kernel(const TensorStatsArgs& args, TensorStats* blocks) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t count) {
      blocks[begin / kBlockElements] = block_stats(x, begin, count);
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(tensor_stats_kernel);

std::vector<TensorStats>& empty_block_stats(int64_t n) {
  thread_local std::vector<TensorStats> blocks;
  blocks.assign(static_cast<size_t>(divide_up(n, kBlockElements)), TensorStats{});
  return blocks;
}

void add_to_record(std::vector<TensorStats>& blocks, const Tensor& record, int64_t index_offset) {
  auto total = read_record<TensorStats>(record);
  for (TensorStats& block : blocks) {
    if (block.first_bad != TensorStats::kNone) block.first_bad += index_offset;
    total += block;
  }
  write_record(total, record);
}

void run(const TensorStatsArgs& args) {
  check_args(args);
  std::vector<TensorStats>& blocks = empty_block_stats(args.x.numel());
  HWY_DYNAMIC_DISPATCH(tensor_stats_kernel)(args, blocks.data());
  add_to_record(blocks, args.record, args.index_offset);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
