// First NaN or Inf, how many of each, and the sum of squares, in one pass. Squares and sums in double, where no fp32
// value overflows; partial sums of fixed blocks, added in order.
#include "core/cpu/tensor_stats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/backend/kernel_checks.h"
#include "core/cpu/read_record.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/tensor_stats.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

template <typename T>
double sum_squares(const T* x, int64_t n) {
  const hn::Half<FloatTag> half;
  const hn::Repartition<double, FloatTag> dd;
  auto sum0 = hn::Zero(dd), sum1 = hn::Zero(dd);
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto v = load(x + i, count);
    const auto low = hn::PromoteTo(dd, hn::LowerHalf(half, v));
    const auto high = hn::PromoteTo(dd, hn::UpperHalf(half, v));
    sum0 = hn::MulAdd(low, low, sum0);
    sum1 = hn::MulAdd(high, high, sum1);
  });
  return hn::GetLane(hn::SumOfLanes(dd, hn::Add(sum0, sum1)));
}

// A sum of squares of finite fp32 values is finite in double: only if it is not, the elements are looked at one by one.
template <typename T>
TensorStats block_stats(const T* x, int64_t begin, int64_t n) {
  TensorStats stats;
  stats.sum_squares = sum_squares(x + begin, n);
  if (std::isfinite(stats.sum_squares)) return stats;
  for (int64_t i = begin; i < begin + n; ++i) {
    const float value = to_float(x[i]);
    if (std::isfinite(value)) continue;
    stats.first_bad = std::min(stats.first_bad, i);
    ++(std::isnan(value) ? stats.nan_count : stats.inf_count);
  }
  return stats;
}

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

void tensor_stats(const TensorStatsArgs& args) {
  check_args(args);
  TensorStats stats = read_record<TensorStats>(args.record);
  thread_local std::vector<TensorStats> blocks;
  blocks.assign(static_cast<size_t>(divide_up(args.x.numel(), kBlockElements)), TensorStats{});
  HWY_DYNAMIC_DISPATCH(tensor_stats_kernel)(args, blocks.data());
  for (const TensorStats& block : blocks) {
    if (block.first_bad != TensorStats::kNone) {
      stats.first_bad = std::min(stats.first_bad, block.first_bad + args.index_offset);
    }
    stats.nan_count += block.nan_count;
    stats.inf_count += block.inf_count;
    stats.sum_squares += block.sum_squares;
  }
  std::memcpy(args.record.raw(), &stats, sizeof(stats));
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
