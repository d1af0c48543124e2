// dst = round(src * scale): the product is taken in fp32 and rounded once to dst's dtype, to nearest, ties to even.
#include "core/kernels/elementwise/args.h"

#include <cstring>


#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/elementwise/cast_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

template <typename Src, typename Dst>
void cast_block(const Src* src, Dst* dst, int64_t n, float scale) {
  const auto factor = hn::Set(FloatTag(), scale);
  for_each_vector(n, [&](int64_t i, int64_t count)
                         MANTISSA_VECTOR_LAMBDA { store(hn::Mul(load(src + i, count), factor), dst + i, count); });
}

void cast_kernel(const CastArgs& args) {
  dispatch(args.src.dtype(), [&]<typename Src>() {
    dispatch(args.dst.dtype(), [&]<typename Dst>() {
      const Src* src = args.src.data<Src>();
      Dst* dst = args.dst.data<Dst>();
      parallel_blocks(args.src.numel(),
                      [&](int64_t begin, int64_t count) { cast_block(src + begin, dst + begin, count, args.scale); });
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(cast_kernel);

void run(const CastArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(cast_kernel)(args);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
