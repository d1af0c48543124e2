// y = keep ? x / (1 - p) : 0, in fp32 with one rounding on store. Element e of global sample s is kept when
//   philox(seed, {e / 4, site, s, step})[e % 4] >= p * 2^32,
// a function of the global position alone: neither ranks, micro-batches, threads nor vector lengths change it.
// A dropped element is 0 whatever it was. Philox4x32-10: Salmon et al., SC'11 (scalar form: core/tensor/philox.h).
#include "core/cpu/dropout.h"

#include <algorithm>
#include <cmath>

#include "core/backend/kernel_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/dropout.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

using WordTag = hn::ScalableTag<uint32_t>;
using WordVec = hn::Vec<WordTag>;

HWY_INLINE void multiply_wide(WordVec a, WordVec b, WordVec& high, WordVec& low) {
  const WordTag du;
  const hn::Repartition<uint64_t, WordTag> du64;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(du64, a))), b);
  low = hn::Mul(a, b);
  high = hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even)));
}

// The words of elements [4 * group, 4 * group + 4 * lanes): `words` has room for as many.
HWY_INLINE void philox_words(const DropoutArgs& args, uint32_t sample, uint32_t group, uint32_t* words) {
  const WordTag du;
  const auto multiplier0 = hn::Set(du, 0xD2511F53u), multiplier1 = hn::Set(du, 0xCD9E8D57u);
  auto c0 = hn::Add(hn::Set(du, group), hn::Iota(du, 0));
  auto c1 = hn::Set(du, args.site), c2 = hn::Set(du, sample), c3 = hn::Set(du, static_cast<uint32_t>(*args.step.data<int32_t>()));
  uint32_t k0 = static_cast<uint32_t>(args.seed), k1 = static_cast<uint32_t>(args.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    WordVec high0, low0, high1, low1;
    multiply_wide(c0, multiplier0, high0, low0);
    multiply_wide(c2, multiplier1, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(du, k0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(du, k1));
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, du, words);
}

// Elements [begin, begin + n) of one sample; begin is a multiple of 4; x and y point at element `begin`.
template <typename X, typename Y>
void dropout_block(const DropoutArgs& args, uint32_t sample, int64_t begin, int64_t n, uint32_t threshold, float scale,
                   const X* x, Y* y) {
  const WordTag du;
  const FloatTag df;
  const int64_t lanes = float_lanes();
  const auto factor = hn::Set(df, scale);
  const auto limit = hn::Set(du, threshold);
  HWY_ALIGN uint32_t words[4 * hn::MaxLanes(WordTag())];
  for (int64_t done = 0; done < n; done += 4 * lanes) {
    philox_words(args, sample, static_cast<uint32_t>((begin + done) / 4), words);
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

void dropout(const DropoutArgs& args) {
  check_args(args);
  // p < 1 in fp32 is at most 1 - 2^-24: the threshold fits in 32 bits.
  const double threshold = std::nearbyint(static_cast<double>(args.probability) * 0x1p32);
  HWY_DYNAMIC_DISPATCH(dropout_kernel)(args, static_cast<uint32_t>(threshold));
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
