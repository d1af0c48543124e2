// y = round(a + b): added in fp32, rounded once to y's dtype.
#include "core/kernels/elementwise/args.h"


#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/elementwise/add_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

template <typename A, typename B, typename Y>
void add_block(const A* a, const B* b, Y* y, int64_t n) {
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    store(hn::Add(load(a + i, count), load(b + i, count)), y + i, count);
  });
}

void add_kernel(const AddArgs& args) {
  dispatch(args.a.dtype(), [&]<typename A>() {
    dispatch(args.b.dtype(), [&]<typename B>() {
      dispatch(args.y.dtype(), [&]<typename Y>() {
        const A* a = args.a.data<A>();
        const B* b = args.b.data<B>();
        Y* y = args.y.data<Y>();
        parallel_blocks(args.y.numel(),
                        [&](int64_t begin, int64_t count) { add_block(a + begin, b + begin, y + begin, count); });
      });
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(add_kernel);

void run(const AddArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(add_kernel)(args);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
