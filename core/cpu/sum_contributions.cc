// out = scale (contributions[0] + contributions[1] + ...), in rank order. Accumulating in fp32, the sum is rounded
// once, to out's dtype; accumulating in the contributions' dtype, it is rounded to that after every addition as well,
// as native 16-bit reductions do. A block that has been summed is examined at once, while the caches hold it.
#include "core/cpu/sum_contributions.h"

#include <optional>

#include "core/backend/kernel_checks.h"
#include "core/cpu/block_stats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/sum_contributions.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/tensor_stats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// The value that T would store.
template <typename T>
HWY_INLINE FloatVec round_to(FloatVec v) {
  HWY_ALIGN T buffer[hn::MaxLanes(FloatTag())];
  store(v, buffer);
  return load(buffer);
}

// Sum holds the running sum: fp32 or T. `stride` is the distance between two ranks' contributions.
template <typename Sum, typename T, typename Out>
void sum_block(const T* contributions, int64_t ranks, int64_t stride, int64_t n, float scale, Out* out) {
  const auto factor = hn::Set(FloatTag(), scale);
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    auto sum = load(contributions + i, count);
    for (int64_t rank = 1; rank < ranks; ++rank) {
      sum = hn::Add(sum, load(contributions + rank * stride + i, count));
      if constexpr (!std::is_same_v<Sum, float>) sum = round_to<Sum>(sum);
    }
    store(hn::Mul(sum, factor), out + i, count);
  });
}

// blocks: null for no statistics.
void sum_contributions_kernel(const SumContributionsArgs& args, BlockStats* blocks) {
  const int64_t n = args.out.numel();
  const int64_t ranks = args.contributions.dim(0);
  dispatch(args.contributions.dtype(), [&]<typename T>() {
    dispatch(args.out.dtype(), [&]<typename Out>() {
      const T* contributions = args.contributions.data<T>();
      Out* out = args.out.data<Out>();
      parallel_blocks(n, [&](int64_t begin, int64_t count) {
        if (args.accumulate == DType::kF32) {
          sum_block<float>(contributions + begin, ranks, n, count, args.scale, out + begin);
        } else {
          sum_block<T>(contributions + begin, ranks, n, count, args.scale, out + begin);
        }
        if (blocks != nullptr) (*blocks)[begin] = block_stats(out, begin, count);
      });
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(sum_contributions_kernel);

void sum_contributions(const SumContributionsArgs& args) {
  check_args(args);
  std::optional<BlockStats> blocks;
  if (args.record.defined()) blocks.emplace(args.out.numel());
  HWY_DYNAMIC_DISPATCH(sum_contributions_kernel)(args, blocks ? &*blocks : nullptr);
  if (blocks) blocks->add_to(args.record, args.index_offset);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
