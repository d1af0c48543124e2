// Stochastic rounding of vectors, bit for bit as core/tensor/half.h, which explains the constants.
//
// Included once per instruction set, after simd-inl.h.
#if defined(MANTISSA_CORE_CPU_STOCHASTIC_ROUNDING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_STOCHASTIC_ROUNDING_INL_H_
#undef MANTISSA_CORE_CPU_STOCHASTIC_ROUNDING_INL_H_
#else
#define MANTISSA_CORE_CPU_STOCHASTIC_ROUNDING_INL_H_
#endif

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

HWY_INLINE void store_stochastically(FloatVec v, hn::Vec<hn::RebindToUnsigned<FloatTag>> word, BFloat16* p) {
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto bits = hn::BitCast(du, v);
  const auto rounded = hn::Add(bits, hn::ShiftRight<16>(word));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, upper)), du16, reinterpret_cast<uint16_t*>(p));
}

HWY_INLINE void store_stochastically(FloatVec v, hn::Vec<hn::RebindToUnsigned<FloatTag>> word, Float16* p) {
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto bits = hn::BitCast(du, v);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto ordered = hn::BitCast(di, magnitude);  // sign bit clear: signed comparisons order it
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const auto is_subnormal = hn::Lt(ordered, hn::Set(di, 0x38800000));
  const auto is_nan = hn::RebindMask(du, hn::Gt(ordered, hn::Set(di, 0x7f800000)));

  // Replace lanes that are not subnormal by 0: converting larger values to integers is undefined.
  const auto small = hn::IfThenElseZero(hn::RebindMask(df, is_subnormal), hn::BitCast(df, magnitude));
  const auto units = hn::Mul(small, hn::Set(df, 0x1p24f));
  const auto whole = hn::ConvertTo(di, units);
  const auto fraction = hn::Sub(units, hn::ConvertTo(df, whole));
  const auto threshold = hn::ConvertTo(di, hn::Mul(fraction, hn::Set(df, 0x1p31f)));
  const auto up = hn::Lt(hn::BitCast(di, hn::ShiftRight<1>(word)), threshold);
  const auto subnormal = hn::BitCast(du, hn::IfThenElse(up, hn::Add(whole, hn::Set(di, 1)), whole));

  const auto sum = hn::Add(hn::Sub(magnitude, hn::Set(du, 0x38000000u)), hn::ShiftRight<19>(word));
  const auto normal = hn::Min(hn::ShiftRight<13>(sum), hn::Set(du, 0x7c00u));
  const auto nan = hn::Or(hn::Set(du, 0x7e00u), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ffu)));
  const auto finite = hn::IfThenElse(hn::RebindMask(du, is_subnormal), subnormal, normal);
  const auto half = hn::Or(sign, hn::IfThenElse(is_nan, nan, finite));
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, half)), du16, reinterpret_cast<uint16_t*>(p));
}

// The first `count` lanes only.
template <typename T>
HWY_INLINE void store_stochastically(FloatVec v, hn::Vec<hn::RebindToUnsigned<FloatTag>> word, T* p, int64_t count) {
  if (count == float_lanes()) return store_stochastically(v, word, p);
  HWY_ALIGN T buffer[hn::MaxLanes(FloatTag())];
  store_stochastically(v, word, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
