// y = r^2 and dx = dy 2 r with r = max(x, 0), in fp32 with one rounding on store. A NaN of x or dy stays one, as does
// an infinity of dy at x <= 0: inf * 0 is NaN, so an overflow does not disappear.
#include "core/kernels/activation/args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/activation/relu_squared_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// Not hn::Max, which may return 0 for a NaN.
HWY_INLINE FloatVec relu(FloatVec x) { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(FloatTag())), x); }

void relu_squared_forward_kernel(const ReluSquaredForwardArgs& args) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t n) {
      for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        const auto r = relu(load(x + begin + i, count));
        store(hn::Mul(r, r), y + begin + i, count);
      });
    });
  });
}

void relu_squared_backward_kernel(const ReluSquaredBackwardArgs& args) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    const T* dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t n) {
      for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        const auto r = relu(load(x + begin + i, count));
        store(hn::Mul(load(dy + begin + i, count), hn::Add(r, r)), dx + begin + i, count);
      });
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(relu_squared_forward_kernel);
HWY_EXPORT(relu_squared_backward_kernel);

void run(const ReluSquaredForwardArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(relu_squared_forward_kernel)(args);
}

void run(const ReluSquaredBackwardArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(relu_squared_backward_kernel)(args);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
