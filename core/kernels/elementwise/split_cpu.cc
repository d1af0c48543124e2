// parts[i] = bf16(x - parts[0] - ... - parts[i-1]). Source: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial
// Intelligence Datatype For Higher-Precision Computations", ARITH 2019.
#include "core/kernels/elementwise/args.h"


#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/elementwise/split_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// A finite v rounded to bf16, clamped to the largest finite bf16 number.
HWY_INLINE FloatVec finite_bf16(FloatVec v) {
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto bits = bf16_in_upper_half(v), sign = hn::Set(du, 0x80000000u);
  const auto magnitude = hn::Min(hn::AndNot(sign, bits), hn::Set(du, 0x7f7fffffu));
  return hn::BitCast(df, hn::And(hn::Or(magnitude, hn::And(sign, bits)), hn::Set(du, 0xffff0000u)));
}

void split_kernel(const SplitArgs& args) {
  const float* const x = args.x.data<float>();
  const int last = args.count() - 1;
  BFloat16* parts[kMostParts] = {};
  for (int part = 0; part <= last; ++part) parts[part] = args.parts[part].data<BFloat16>();
  parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t n) {
    for_each_vector(n, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
      const FloatVec value = load(x + begin + i, lanes);
      const auto finite = hn::IsFinite(value);
      FloatVec rest = hn::IfThenElseZero(finite, value);
      for (int part = 0; part < last; ++part) {
        const FloatVec rounded = finite_bf16(rest);
        store(rounded, parts[part] + begin + i, lanes);
        rest = hn::Sub(rest, rounded);
      }
      store(hn::IfThenElse(finite, finite_bf16(rest), value), parts[last] + begin + i, lanes);
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(split_kernel);

void run(const SplitArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(split_kernel)(args);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
