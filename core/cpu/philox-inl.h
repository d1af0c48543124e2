// Philox4x32-10 for one counter per vector lane: the words of core/tensor/philox.h.
//
// Included once per instruction set, after simd-inl.h. Source: Salmon et al., SC'11.
#if defined(MANTISSA_CORE_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_PHILOX_INL_H_
#undef MANTISSA_CORE_CPU_PHILOX_INL_H_
#else
#define MANTISSA_CORE_CPU_PHILOX_INL_H_
#endif

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

// Writes 4 * lanes words: the four words of each lane's counter {c0, c1, c2, c3}, lane by lane.
HWY_INLINE void philox_words(uint64_t key, WordVec c0, WordVec c1, WordVec c2, WordVec c3, uint32_t* words) {
  const WordTag du;
  const auto multiplier0 = hn::Set(du, 0xD2511F53u), multiplier1 = hn::Set(du, 0xCD9E8D57u);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
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

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
