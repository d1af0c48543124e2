// Vector code of tensor_stats: the first NaN or Inf, the number of each, and the sum of squares, in one pass. Squares
// and sums are double, where no fp32 value overflows.
#if defined(MANTISSA_CORE_KERNELS_REDUCTION_TENSOR_STATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_KERNELS_REDUCTION_TENSOR_STATS_INL_H_
#undef MANTISSA_CORE_KERNELS_REDUCTION_TENSOR_STATS_INL_H_
#else
#define MANTISSA_CORE_KERNELS_REDUCTION_TENSOR_STATS_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "core/cpu/simd-inl.h"
#include "core/kernels/reduction/update_decision.h"

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

// Statistics of x[begin, begin + n). The sum of squares of finite fp32 values is finite in double. Only if it is not
// finite, each element is examined.
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

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MANTISSA_CORE_KERNELS_REDUCTION_TENSOR_STATS_INL_H_
