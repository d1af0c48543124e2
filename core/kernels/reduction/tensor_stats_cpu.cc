// The first NaN or Inf, the count of each, and the sum of squares, in one pass. Squares and sums are double, where no
// fp32 value overflows. Partial sums of fixed blocks are added in order.
#include "core/kernels/reduction/args.h"

#include "core/kernels/reduction/block_stats_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/reduction/tensor_stats_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/reduction/tensor_stats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

void tensor_stats_kernel(const TensorStatsArgs& args, BlockStats& blocks) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    parallel_blocks(args.x.numel(),
                    [&](int64_t begin, int64_t count) { blocks[begin] = block_stats(x, begin, count); });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(tensor_stats_kernel);

void run(const TensorStatsArgs& args) {
  check_args(args);
  BlockStats blocks(args.x.numel());
  HWY_DYNAMIC_DISPATCH(tensor_stats_kernel)(args, blocks);
  blocks.add_to(args.record, args.index_offset);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
