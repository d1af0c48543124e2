// SIMD helpers shared by the kernels: loads of fp32, bf16 and fp16 as fp32 vectors, correctly rounded stores, tails,
// loops.
//
// Included once per instruction set (Google Highway's foreach_target), like every *-inl.h file. Conversions round to
// nearest, ties to even; a NaN stays a (quiet) NaN with its sign; subnormals are kept. They agree bit for bit with the
// scalar ones in core/tensor/half.h.
#if defined(MANTISSA_CORE_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_SIMD_INL_H_
#undef MANTISSA_CORE_CPU_SIMD_INL_H_
#else
#define MANTISSA_CORE_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "core/cpu/parallel.h"
#include "core/tensor/half.h"
#include "hwy/highway.h"

// Highway keeps one table index for the whole program, so every file must be compiled for the same set of targets.
#if HWY_ARCH_X86 && !defined(HWY_WANT_SSE4)
#error "Kernels need the defines of //core/cpu: HWY_WANT_SSE4=1"
#endif

// Goes between the parameters and the body of a lambda that uses vectors: lambdas do not inherit the instruction set.
#undef MANTISSA_VECTOR_LAMBDA
#define MANTISSA_VECTOR_LAMBDA HWY_ATTR __attribute__((always_inline))

// Defines run(const Args&): checks the arguments, then calls `kernel` compiled for the best instruction set. For the
// HWY_ONCE part of a kernel's file.
#undef MANTISSA_RUN_KERNEL
#define MANTISSA_RUN_KERNEL(Args, kernel) \
  HWY_EXPORT(kernel);                     \
  void run(const Args& args) {            \
    check_args(args);                     \
    HWY_DYNAMIC_DISPATCH(kernel)(args);   \
  }

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;  // vectors of 32-bit integers with as many lanes
using IntVec = hn::Vec<IntTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVec = hn::Vec<WordTag>;

HWY_INLINE int64_t float_lanes() { return static_cast<int64_t>(hn::Lanes(FloatTag())); }

// ---- Whole vectors: memory of any alignment.

HWY_INLINE FloatVec load(const float* p) { return hn::LoadU(FloatTag(), p); }

HWY_INLINE FloatVec load(const BFloat16* p) {
  const FloatTag df;
  const WordTag du;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

HWY_INLINE FloatVec load(const Float16* p) {
  const FloatTag df;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // F16C: exact
  const hn::Rebind<hwy::float16_t, FloatTag> df16;
  return hn::PromoteTo(df, hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  // Shifts exponent and mantissa into place, then rescales by the difference of the biases: exact for subnormals too.
  // Inf and NaN get a finite exponent from this and need theirs set (and a NaN its quiet bit, as F16C does).
  const WordTag du;
  const IntTag di;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto half = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7fffu)));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto scaled = hn::BitCast(du, hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1p112f)));
  const auto special = hn::Gt(signed_magnitude, hn::Set(di, 0x0f7fffff));
  const auto nan = hn::Gt(signed_magnitude, hn::Set(di, 0x0f800000));
  const auto special_bits = hn::IfThenElseZero(hn::RebindMask(du, special), hn::Set(du, 0x7f800000u));
  const auto quiet_bit = hn::IfThenElseZero(hn::RebindMask(du, nan), hn::Set(du, 0x00400000u));
  return hn::BitCast(df, hn::Or(hn::Or(scaled, sign), hn::Or(special_bits, quiet_bit)));
#endif
}

HWY_INLINE void store(FloatVec v, float* p) { hn::StoreU(v, FloatTag(), p); }

// v rounded to bf16, in the upper half of each lane's bits. The lower half is unspecified.
HWY_INLINE WordVec bf16_in_upper_half(FloatVec v) {
  // Done by hand: Highway's DemoteTo truncates, and VCVTNEPS2BF16 flushes subnormals.
  const WordTag du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  return hn::IfThenElse(nan, quiet, rounded);
}

HWY_INLINE void store(FloatVec v, BFloat16* p) {
  const IntTag di;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto upper = hn::ShiftRight<16>(bf16_in_upper_half(v));
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, upper)), du16, reinterpret_cast<uint16_t*>(p));
}

HWY_INLINE void store(FloatVec v, Float16* p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // F16C: rounds to nearest even, keeps subnormals, quiets NaN
  const hn::Rebind<hwy::float16_t, FloatTag> df16;
  hn::StoreU(hn::DemoteTo(df16, v), df16, reinterpret_cast<hwy::float16_t*>(p));
#else
  // The steps of from_float<Float16>() in core/tensor/half.h.
  const FloatTag df;
  const WordTag du;
  const IntTag di;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto bits = hn::BitCast(du, v);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto ordered = hn::BitCast(di, magnitude);  // sign bit clear: signed comparisons order it
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const auto aligned = hn::BitCast(du, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f)));
  const auto subnormal = hn::Sub(aligned, hn::Set(du, 0x3f000000u));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0xfffu)), odd);
  const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 0x38000000u)));
  const auto nan = hn::Or(hn::Set(du, 0x7e00u), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ffu)));
  const auto is_subnormal = hn::RebindMask(du, hn::Lt(ordered, hn::Set(di, 0x38800000)));
  const auto is_overflow = hn::RebindMask(du, hn::Gt(ordered, hn::Set(di, 0x477fefff)));  // >= 65520
  const auto is_nan = hn::RebindMask(du, hn::Gt(ordered, hn::Set(di, 0x7f800000)));
  auto half = hn::IfThenElse(is_subnormal, subnormal, normal);
  half = hn::IfThenElse(is_overflow, hn::Set(du, 0x7c00u), half);
  half = hn::Or(sign, hn::IfThenElse(is_nan, nan, half));
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, half)), du16, reinterpret_cast<uint16_t*>(p));
#endif
}

// ---- The first `count` lanes only; nothing beyond them is read or written. Missing lanes load as 0. Uses a buffer,
// because Highway's masked loads touch the whole vector on SSE4.

template <typename T>
HWY_INLINE FloatVec load(const T* p, int64_t count) {
  if (count == float_lanes()) return load(p);
  HWY_ALIGN T buffer[hn::MaxLanes(FloatTag())] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(T));
  return load(buffer);
}

template <typename T>
HWY_INLINE void store(FloatVec v, T* p, int64_t count) {
  if (count == float_lanes()) return store(v, p);
  HWY_ALIGN T buffer[hn::MaxLanes(FloatTag())];
  store(v, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(T));
}

HWY_INLINE FloatVec zero_beyond(FloatVec v, int64_t count) {
  if (count == float_lanes()) return v;
  return hn::IfThenElseZero(hn::FirstN(FloatTag(), static_cast<size_t>(count)), v);
}

// ---- Loops. `body(i, count)` handles elements [i, i + count), count lanes at a time, fewer at the end.

template <typename Body>
HWY_INLINE void for_each_vector(int64_t n, Body&& body) {
  const int64_t lanes = float_lanes();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, lanes);
  if (i < n) body(i, n - i);
}

// Sum of term(i, count) over n elements. Lanes beyond count must be 0. Four accumulators hide the latency of additions.
template <typename Term>
HWY_INLINE float sum_vectors(int64_t n, Term&& term) {
  const FloatTag df;
  const int64_t lanes = float_lanes();
  auto sum0 = hn::Zero(df), sum1 = hn::Zero(df), sum2 = hn::Zero(df), sum3 = hn::Zero(df);
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = hn::Add(sum0, term(i, lanes));
    sum1 = hn::Add(sum1, term(i + lanes, lanes));
    sum2 = hn::Add(sum2, term(i + 2 * lanes, lanes));
    sum3 = hn::Add(sum3, term(i + 3 * lanes, lanes));
  }
  for (; i + lanes <= n; i += lanes) sum0 = hn::Add(sum0, term(i, lanes));
  if (i < n) sum1 = hn::Add(sum1, term(i, n - i));
  return hn::GetLane(hn::SumOfLanes(df, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
