// Second half of a sum over rows: adds the partial sums of RowBlocks in block order.
#if defined(MANTISSA_CORE_CPU_PARTIAL_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_PARTIAL_SUMS_INL_H_
#undef MANTISSA_CORE_CPU_PARTIAL_SUMS_INL_H_
#else
#define MANTISSA_CORE_CPU_PARTIAL_SUMS_INL_H_
#endif

#include "core/cpu/simd-inl.h"
#include "core/kernels/kernel_args.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// out[c] (+)= sum of partials[b * stride + c] over b in [0, blocks), c in [0, columns).
HWY_INLINE void add_partial_sums(const float* partials, int64_t blocks, int64_t stride, int64_t columns, float* out,
                                 GradientMode mode) {
  for_each_vector(columns, [&](int64_t c, int64_t count) MANTISSA_VECTOR_LAMBDA {
    auto sum = hn::Zero(FloatTag());
    for (int64_t block = 0; block < blocks; ++block) sum = hn::Add(sum, load(partials + block * stride + c, count));
    if (mode == GradientMode::kAccumulate) sum = hn::Add(load(out + c, count), sum);
    store(sum, out + c, count);
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
