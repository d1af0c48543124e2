// y = keep ? x / (1 - p) : 0, in fp32 with one rounding on store. Element e of global sample s is kept when
//   philox(seed, {e / 4, site, s, step})[e % 4] >= p * 2^32,
// a function of the global position alone: neither ranks, micro-batches, threads nor vector lengths change it.
// A dropped element is 0 whatever it was. Philox4x32-10: Salmon et al., SC'11 (scalar form: core/tensor/philox.h).
#include "core/kernels/elementwise/args.h"

#include <algorithm>
#include <cmath>


#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/elementwise/dropout_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd_math-inl.h"
#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// Elements [begin, begin + n) of one sample; begin is a multiple of 4; x and y point at element `begin`.
template <typename X, typename Y>
void dropout_block(const DropoutArgs& args, uint32_t sample, int64_t begin, int64_t n, uint32_t threshold, float scale,
                   const X* x, Y* y) {
  const WordTag du;
  const FloatTag df;
  const int64_t lanes = float_lanes();
  const auto factor = hn::Set(df, scale);
  const auto limit = hn::Set(du, threshold);
  const auto step = static_cast<uint32_t>(*args.step.data<int32_t>());
  HWY_ALIGN uint32_t words[4 * hn::MaxLanes(WordTag())];
  for (int64_t done = 0; done < n; done += 4 * lanes) {
    const auto group = hn::Add(hn::Set(du, static_cast<uint32_t>((begin + done) / 4)), hn::Iota(du, 0));
    philox_words(args.seed, group, hn::Set(du, args.site), hn::Set(du, sample), hn::Set(du, step), words);
    const int64_t size = std::min(4 * lanes, n - done);
    for_each_vector(size, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      const auto dropped = hn::RebindMask(df, hn::Lt(hn::Load(du, words + i), limit));
      const auto kept = hn::IfThenZeroElse(dropped, hn::Mul(load(x + done + i, count), factor));
      store(kept, y + done + i, count);
    });
  }
}

void dropout_kernel(const DropoutArgs& args, uint32_t threshold) {
  const int64_t per_sample = args.elements_per_sample;
  const int64_t samples = args.x.numel() / per_sample;
  const int64_t blocks = divide_up(per_sample, kBlockElements);  // block boundaries are multiples of 4
  const float scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(args.probability)));
  dispatch(args.x.dtype(), [&]<typename X>() {
    dispatch(args.y.dtype(), [&]<typename Y>() {
      const X* x = args.x.data<X>();
      Y* y = args.y.data<Y>();
      parallel_rows(samples * blocks, std::min(per_sample, kBlockElements), [&](int64_t index) {
        const int64_t sample = index / blocks;
        const int64_t begin = index % blocks * kBlockElements;
        const int64_t at = sample * per_sample + begin;
        dropout_block(args, args.first_sample + static_cast<uint32_t>(sample), begin,
                      std::min(kBlockElements, per_sample - begin), threshold, scale, x + at, y + at);
      });
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(dropout_kernel);

void run(const DropoutArgs& args) {
  check_args(args);
  // p < 1 in fp32 is at most 1 - 2^-24: the threshold fits in 32 bits.
  const double threshold = std::nearbyint(static_cast<double>(args.probability) * 0x1p32);
  HWY_DYNAMIC_DISPATCH(dropout_kernel)(args, static_cast<uint32_t>(threshold));
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
