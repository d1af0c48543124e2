// Transforms 16 rows at a time, with a vector of columns in 16 registers: butterflies between rows, no shuffles.
#include "core/kernels/quantize/args.h"

#include "core/quant/narrow_format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/quantize/hadamard_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// kHadamardLength rows of `columns` columns.
template <typename X, typename Y>
void transform_rows(const X* x, Y* y, int64_t columns) {
  for_each_vector(columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    FloatVec v[kHadamardLength];
    for (int64_t row = 0; row < kHadamardLength; ++row) {
      v[row] = load(x + row * columns + i, count);
      if (hadamard_negates(row)) v[row] = hn::Neg(v[row]);
    }
    for (int64_t distance = 1; distance < kHadamardLength; distance *= 2) {
      for (int64_t row = 0; row < kHadamardLength; ++row) {
        if ((row & distance) != 0) continue;
        const FloatVec a = v[row], b = v[row + distance];
        v[row] = hn::Add(a, b), v[row + distance] = hn::Sub(a, b);
      }
    }
    for (int64_t row = 0; row < kHadamardLength; ++row) {
      store(hn::Mul(v[row], hn::Set(FloatTag(), 0.25f)), y + row * columns + i, count);
    }
  });
}

void hadamard_kernel(const HadamardArgs& args, Rows extents) {
  dispatch(args.x.dtype(), [&]<typename X>() {
    dispatch(args.y.dtype(), [&]<typename Y>() {
      const int64_t block = kHadamardLength * extents.columns;
      parallel_for(extents.rows / kHadamardLength, [&](int64_t index) {
        transform_rows(args.x.data<X>() + index * block, args.y.data<Y>() + index * block, extents.columns);
      });
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(hadamard_kernel);

void run(const HadamardArgs& args) { HWY_DYNAMIC_DISPATCH(hadamard_kernel)(args, check_args(args)); }

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
