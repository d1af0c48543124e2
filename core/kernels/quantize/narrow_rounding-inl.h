// Vector forms of core/quant/narrow_format.h, bit for bit, and the largest magnitude over many vectors.
#if defined(MANTISSA_CORE_CPU_QUANT_NARROW_ROUNDING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_QUANT_NARROW_ROUNDING_INL_H_
#undef MANTISSA_CORE_CPU_QUANT_NARROW_ROUNDING_INL_H_
#else
#define MANTISSA_CORE_CPU_QUANT_NARROW_ROUNDING_INL_H_
#endif

#include <atomic>

#include "core/cpu/simd-inl.h"
#include "core/kernels/quantize/args.h"
#include "core/quant/narrow_format.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// Non-negative, so signed comparisons order it.
HWY_INLINE IntVec magnitude_bits(FloatVec v) {
  return hn::And(hn::BitCast(IntTag(), v), hn::Set(IntTag(), 0x7fffffff));
}

class NarrowRounding {
 public:
  explicit NarrowRounding(Format format) : format_(narrow_format(format)) {}

  // Vector form of round_to().
  HWY_INLINE FloatVec operator()(FloatVec v) const {
    const FloatTag df;
    const auto magnitude = limited(v);
    const auto aligner = hn::Mul(binade(magnitude), hn::Set(df, power_of_two(23 - format_.mantissa_bits)));
    return with_sign_and_non_finite(hn::Sub(hn::Add(magnitude, aligner), aligner), v);
  }

  // Vector form of round_stochastically_to().
  HWY_INLINE FloatVec stochastic(FloatVec v, WordVec words) const {
    const FloatTag df;
    const IntTag di;
    const auto magnitude = limited(v);
    const auto distance = hn::Mul(binade(magnitude), hn::Set(df, power_of_two(-format_.mantissa_bits)));
    const auto places = hn::Div(magnitude, distance);
    const auto whole = hn::ConvertTo(df, hn::ConvertTo(di, places));  // truncates
    const auto fraction = hn::ConvertTo(di, hn::Mul(hn::Sub(places, whole), hn::Set(df, 0x1p31f)));
    const auto up = hn::Lt(hn::BitCast(di, hn::ShiftRight<1>(words)), fraction);
    const auto one = hn::IfThenElseZero(hn::RebindMask(df, up), hn::Set(df, 1.0f));
    return with_sign_and_non_finite(hn::Mul(hn::Add(whole, one), distance), v);
  }

  // Vector form of code_of(): stores the codes of v, which operator() or stochastic() made.
  HWY_INLINE void store_codes(FloatVec v, uint8_t* to) const {
    const FloatTag df;
    const IntTag di;
    const auto bits = magnitude_bits(v), infinity = hn::Set(di, static_cast<int32_t>(kInfinityBits));
    const auto smallest = hn::Set(df, format_.min_normal), magnitude = hn::BitCast(df, bits);
    const auto subnormal = hn::Lt(magnitude, smallest);
    const auto lifted = hn::IfThenElse(subnormal, hn::Add(magnitude, smallest), magnitude);
    const auto places =
        hn::ShiftRightSame(hn::Sub(hn::BitCast(di, lifted), hn::BitCast(di, smallest)), 23 - format_.mantissa_bits);
    const auto leading = hn::IfThenZeroElse(hn::RebindMask(di, subnormal), hn::Set(di, 1 << format_.mantissa_bits));
    const auto of_infinity = hn::Set(di, format_.has_infinity ? 0x7c : 0x7f);
    const auto non_finite = hn::IfThenElse(hn::Eq(bits, infinity), of_infinity, hn::Set(di, 0x7f));
    const auto code = hn::IfThenElse(hn::Lt(bits, infinity), hn::Add(places, leading), non_finite);
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(di, v)), hn::Set(di, 0x80));
    const hn::Rebind<uint8_t, FloatTag> du8;
    hn::StoreU(hn::DemoteTo(du8, hn::Or(code, sign)), du8, to);
  }

 private:
  HWY_INLINE FloatVec limited(FloatVec v) const {
    return hn::Min(hn::BitCast(FloatTag(), magnitude_bits(v)), hn::Set(FloatTag(), format_.max));
  }
  // The power of two at or below max(magnitude, smallest normal number).
  HWY_INLINE FloatVec binade(FloatVec magnitude) const {
    const auto at_least = hn::Max(magnitude, hn::Set(FloatTag(), format_.min_normal));
    const auto infinity = hn::Set(IntTag(), static_cast<int32_t>(kInfinityBits));
    return hn::BitCast(FloatTag(), hn::And(hn::BitCast(IntTag(), at_least), infinity));
  }
  // `rounded` with the sign of v if v is finite; else v or NaN, depending on the format.
  HWY_INLINE FloatVec with_sign_and_non_finite(FloatVec rounded, FloatVec v) const {
    const FloatTag df;
    const IntTag di;
    const auto bits = magnitude_bits(v), infinity = hn::Set(di, static_cast<int32_t>(kInfinityBits));
    const auto sign = hn::And(hn::BitCast(di, v), hn::Set(di, INT32_MIN));
    const auto finite = hn::BitCast(df, hn::Or(hn::BitCast(di, rounded), sign));
    const auto nan = hn::Set(df, std::numeric_limits<float>::quiet_NaN());
    const auto kept = format_.has_infinity ? hn::Eq(bits, infinity) : hn::Lt(bits, hn::Zero(di));
    const auto non_finite = hn::IfThenElse(hn::RebindMask(df, kept), v, nan);
    return hn::IfThenElse(hn::RebindMask(df, hn::Lt(bits, infinity)), finite, non_finite);
  }

  NarrowFormat format_;
};

// Accumulates the largest magnitude and the number of non-finite values.
class VectorAmax {
 public:
  HWY_INLINE VectorAmax() : largest_(hn::Zero(IntTag())) {}
  HWY_INLINE void add(FloatVec v) {
    const auto bits = magnitude_bits(v);
    largest_ = hn::Max(largest_, bits);
    const auto bad = hn::Gt(bits, hn::Set(IntTag(), static_cast<int32_t>(kInfinityBits) - 1));
    non_finite_ += static_cast<int64_t>(hn::CountTrue(IntTag(), bad));
  }
  // For each lane.
  IntVec lanes() const { return largest_; }
  uint32_t amax() const { return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(IntTag(), largest_))); }
  // Adds the results to a record that many tasks update. Maxima and counts do not depend on the order. An undefined
  // tensor is ignored; others must have passed check_record<QuantizeRecord>().
  void add_to(const Tensor& tensor) const {
    if (!tensor.defined()) return;
    auto* const record = reinterpret_cast<QuantizeRecord*>(tensor.raw());
    if (non_finite_ != 0) std::atomic_ref(record->non_finite).fetch_add(non_finite_, std::memory_order_relaxed);
    const std::atomic_ref largest(record->amax);
    uint32_t seen = largest.load(std::memory_order_relaxed);
    while (seen < amax() && !largest.compare_exchange_weak(seen, amax(), std::memory_order_relaxed)) {
    }
  }

 private:
  IntVec largest_;
  int64_t non_finite_ = 0;
};

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
