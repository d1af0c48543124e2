// Elementary functions on fp32 vectors, and random words. NaN gives NaN. The errors below are the largest measured over
// all targets; tests/core/cpu/simd_math_test.cc checks these bounds.
#if defined(MANTISSA_CORE_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_SIMD_MATH_INL_H_
#undef MANTISSA_CORE_CPU_SIMD_MATH_INL_H_
#else
#define MANTISSA_CORE_CPU_SIMD_MATH_INL_H_
#endif

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// e^x to 1.5 ulp; 0 if the result would be below 2^-126 (x < -87.34), and Inf already from 2^127.5 (x > 88.37).
// Computes x = n ln2 + r with ln2 in two parts (n times the first part is exact), a polynomial in r, and 2^n.
// Polynomial and reduction: Moshier's Cephes, expf.
HWY_INLINE FloatVec exp(FloatVec x) {
  const FloatTag df;
  const WordTag du;
  // Clamp by comparisons, which are false for NaN; Min and Max would lose it. NaN then stays NaN whatever 2^n's bits
  // are.
  x = hn::IfThenElse(hn::Gt(x, hn::Set(df, 88.5f)), hn::Set(df, 88.5f), x);
  // Adding 1.5 * 2^23 rounds to an integer in the last place. Adding 127 leaves 2^n's biased exponent in the low bits.
  const auto magic = hn::Set(df, 0x1.8p23f + 127.0f);
  const auto shifted = hn::MulAdd(x, hn::Set(df, 1.44269504088896341f), magic);
  const auto n = hn::Sub(shifted, magic);
  const auto power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  auto r = hn::NegMulAdd(n, hn::Set(df, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(df, -2.12194440e-4f), r);
  auto p = hn::Set(df, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(df, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(df, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(df, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(df, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(df, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(df, 1.0f));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -87.3365f)), hn::Mul(p, power));
}

// sigmoid(x) = 1 / (1 + e^-x) and its complement sigmoid(-x) = 1 - sigmoid(x), both to 4 ulp even where they are tiny:
// e^-|x| never overflows.
struct SigmoidPair {
  FloatVec value, complement;
};

HWY_INLINE SigmoidPair sigmoid(FloatVec x) {
  const FloatTag df;
  const auto e = exp(hn::Neg(hn::Abs(x)));
  const auto large = hn::Div(hn::Set(df, 1.0f), hn::Add(hn::Set(df, 1.0f), e));
  const auto small = hn::Mul(e, large);
  const auto negative = hn::Lt(x, hn::Zero(df));
  return {hn::IfThenElse(negative, small, large), hn::IfThenElse(negative, large, small)};
}

// tanh(x) to 3 ulp, and its derivative 1 - tanh(x)^2 to 8 ulp even where it is tiny.
struct TanhPair {
  FloatVec value, slope;
};

// For small |x|, where 1 - e^-2|x| cancels, x + x^3 P(x^2): Moshier's Cephes, tanhf.
HWY_INLINE TanhPair tanh(FloatVec x) {
  const FloatTag df;
  const auto one = hn::Set(df, 1.0f), magnitude = hn::Abs(x), square = hn::Mul(x, x);
  const auto e = exp(hn::Mul(magnitude, hn::Set(df, -2.0f)));
  const auto inverse = hn::Div(one, hn::Add(one, e));
  const auto large = hn::CopySign(hn::Mul(hn::Sub(one, e), inverse), x);
  auto polynomial = hn::Set(df, -5.70498872745e-3f);
  for (const float coefficient : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) {
    polynomial = hn::MulAdd(polynomial, square, hn::Set(df, coefficient));
  }
  const auto small = hn::MulAdd(hn::Mul(polynomial, square), x, x);
  return {hn::IfThenElse(hn::Lt(magnitude, hn::Set(df, 0.625f)), small, large),
          hn::Mul(hn::Mul(hn::Set(df, 4.0f), e), hn::Mul(inverse, inverse))};
}

// The standard normal distribution: cdf(x) = (1 + erf(x / sqrt 2)) / 2 and density(x) = e^(-x^2/2) / sqrt(2 pi).
//
// The tail is Q(a) = 1 - cdf(a) = e^(-a^2/2) g(a) with a = |x|. g is smooth: a polynomial in t = (a - 3) / (a + 3), the
// form of Shepherd & Laframboise, "Chebyshev approximation of (1+2x)exp(x^2)erfc(x)", Math. Comp. 36, 1981. The
// coefficients are our own minimax fit (Remez, relative error 9.2e-9 on 0 <= a <= 14.5; beyond it e^(-a^2/2) is 0 in
// fp32). The lower tail thus keeps its relative accuracy where 1 + erf would cancel. The relative error is at most (4 +
// x^2 / 2) epsilon in both functions; x^2 / 2 epsilon comes from rounding x^2 in the exponent.
struct Normal {
  FloatVec cdf, density;
};

HWY_INLINE Normal normal(FloatVec x) {
  const FloatTag df;
  const auto a = hn::Abs(x);
  const auto e = exp(hn::Mul(hn::Mul(x, x), hn::Set(df, -0.5f)));
  const auto bounded = hn::IfThenElse(hn::Gt(a, hn::Set(df, 15.0f)), hn::Set(df, 15.0f), a);  // keeps NaN
  const auto t = hn::Div(hn::Sub(bounded, hn::Set(df, 3.0f)), hn::Add(bounded, hn::Set(df, 3.0f)));
  auto g = hn::Set(df, 5.31619596771e-5f);
  g = hn::MulAdd(g, t, hn::Set(df, 1.1501344853e-4f));
  g = hn::MulAdd(g, t, hn::Set(df, -3.39013128003e-4f));
  g = hn::MulAdd(g, t, hn::Set(df, -9.83288017571e-4f));
  g = hn::MulAdd(g, t, hn::Set(df, 2.90438759248e-3f));
  g = hn::MulAdd(g, t, hn::Set(df, 6.13194222595e-3f));
  g = hn::MulAdd(g, t, hn::Set(df, -4.62132636749e-2f));
  g = hn::MulAdd(g, t, hn::Set(df, 1.23225041227e-1f));
  g = hn::MulAdd(g, t, hn::Set(df, -2.06402620407e-1f));
  g = hn::MulAdd(g, t, hn::Set(df, 1.21513947514e-1f));
  const auto tail = hn::Mul(e, g);
  const auto negative = hn::Lt(x, hn::Zero(df));
  return {hn::IfThenElse(negative, tail, hn::Sub(hn::Set(df, 1.0f), tail)),
          hn::Mul(e, hn::Set(df, 0.398942280401432678f))};
}

HWY_INLINE void multiply_wide(WordVec a, WordVec b, WordVec& high, WordVec& low) {
  const WordTag du;
  const hn::Repartition<uint64_t, WordTag> du64;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(du64, a))), b);
  low = hn::Mul(a, b);
  high = hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even)));
}

// Philox4x32-10 (Salmon et al., SC'11), the words of core/tensor/philox.h. Writes 4 * lanes words: the four words of
// each lane's counter {c0, c1, c2, c3}, lane by lane.
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
