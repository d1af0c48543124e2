// Vector code of AdamW updates: the arithmetic, stochastic rounding, and moments in 8 bits.
#if defined(MANTISSA_CORE_KERNELS_OPTIMIZER_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_KERNELS_OPTIMIZER_ADAMW_INL_H_
#undef MANTISSA_CORE_KERNELS_OPTIMIZER_ADAMW_INL_H_
#else
#define MANTISSA_CORE_KERNELS_OPTIMIZER_ADAMW_INL_H_
#endif

#include <atomic>

#include "core/cpu/simd_math-inl.h"
#include "core/kernels/optimizer/args.h"
#include "core/kernels/optimizer/dynamic_map_table_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// The factors of one update.
struct AdamWFactors {
  AdamWFactors(const AdamWArgs& args, const UpdateControl& control)
      : multiplier(static_cast<float>(control.gradient_multiplier)),
        beta1(args.beta1),
        beta2(args.beta2),
        decay(static_cast<float>(control.learning_rate) * args.weight_decay),
        step(static_cast<float>(control.learning_rate) / static_cast<float>(control.bias_correction1)),
        inverse_correction2(1.0f / static_cast<float>(control.bias_correction2)),
        epsilon(args.epsilon) {}

  float multiplier, beta1, beta2, decay, step, inverse_correction2, epsilon;
};

// Updates m and v by the gradient. Returns the amount to subtract from the weight, excluding its decay.
HWY_INLINE FloatVec update_moments(const AdamWFactors& f, FloatVec gradient, FloatVec& m, FloatVec& v) {
  const FloatTag df;
  const auto g = hn::Mul(gradient, hn::Set(df, f.multiplier));
  m = hn::MulAdd(hn::Set(df, f.beta1), m, hn::Mul(hn::Set(df, 1.0f - f.beta1), g));
  v = hn::MulAdd(hn::Set(df, f.beta2), v, hn::Mul(hn::Set(df, 1.0f - f.beta2), hn::Mul(g, g)));
  const auto root = hn::Sqrt(hn::Mul(v, hn::Set(df, f.inverse_correction2)));
  return hn::Div(hn::Mul(hn::Set(df, f.step), m), hn::Add(root, hn::Set(df, f.epsilon)));
}

HWY_INLINE FloatVec updated_weight(const AdamWFactors& f, FloatVec w, FloatVec fall) {
  return hn::Sub(hn::NegMulAdd(hn::Set(FloatTag(), f.decay), w, w), fall);
}

// ---- Search for is_state_fault(). The bits of magnitudes order like them, with Inf and NaN above all numbers.

// Keeps the largest magnitude of the first `count` lanes, as bits, in `largest`.
HWY_INLINE void keep_largest(FloatVec v, int64_t count, IntVec& largest) {
  const IntTag di;
  auto bits = hn::And(hn::BitCast(di, v), hn::Set(di, 0x7fffffff));
  if (count < float_lanes()) bits = hn::IfThenElseZero(hn::FirstN(di, static_cast<size_t>(count)), bits);
  largest = hn::Max(largest, bits);
}

// Sets AdamWArgs::faults if there is one.
inline void report_largest(IntVec largest, const Tensor& faults) {
  if (!faults.defined() || hn::GetLane(hn::MaxOfLanes(IntTag(), largest)) <= std::bit_cast<int32_t>(kLargestState))
    return;
  std::atomic_ref(*faults.data<int32_t>()).store(1, std::memory_order_relaxed);
}

// The random words of elements [element, element + 4 * lanes) of a parameter in one update, see AdamWArgs. element is a
// multiple of 4.
HWY_INLINE void element_words(uint64_t key, uint32_t parameter, uint32_t update, int64_t element, uint32_t* words) {
  const WordTag du;
  const auto group = static_cast<uint64_t>(element) / 4;
  const auto first = hn::Set(du, static_cast<uint32_t>(group));
  const auto high = static_cast<uint32_t>(group >> 32);
  const auto low = hn::Add(first, hn::Iota(du, 0));
  const auto carried = hn::IfThenElse(hn::Lt(low, first), hn::Set(du, high + 1), hn::Set(du, high));
  philox_words(key, low, carried, hn::Set(du, parameter), hn::Set(du, update), words);
}

// ---- Stochastic rounding, bit for bit as core/tensor/half.h, which explains the constants.

HWY_INLINE void store_stochastically(FloatVec v, WordVec word, BFloat16* p) {
  const WordTag du;
  const IntTag di;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto bits = hn::BitCast(du, v);
  const auto rounded = hn::Add(bits, hn::ShiftRight<16>(word));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, upper)), du16, reinterpret_cast<uint16_t*>(p));
}

HWY_INLINE void store_stochastically(FloatVec v, WordVec word, Float16* p) {
  const FloatTag df;
  const WordTag du;
  const IntTag di;
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
HWY_INLINE void store_stochastically(FloatVec v, WordVec word, T* p, int64_t count) {
  if (count == float_lanes()) return store_stochastically(v, word, p);
  HWY_ALIGN T buffer[hn::MaxLanes(FloatTag())];
  store_stochastically(v, word, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(T));
}

// ---- Moments in 8 bits, bit for bit as core/quant/dynamic_map.h.

// values (kDynamicBlock) of the codes (kDynamicBlock).
inline void decode_block(DynamicMap map, const uint8_t* codes, float absmax, float* values) {
  const FloatTag df;
  const IntTag di;
  const hn::Rebind<uint8_t, FloatTag> du8;
  const float* table = dynamic_map_table(map).values.data();
  const auto scale = hn::Set(df, absmax);
  for (int64_t i = 0; i < kDynamicBlock; i += float_lanes()) {
    const auto index = hn::PromoteTo(di, hn::LoadU(du8, codes + i));
    hn::StoreU(hn::Mul(hn::GatherIndex(df, table, index), scale), df, values + i);
  }
}

// The largest magnitude in values (kDynamicBlock); NaN if any value is NaN.
inline float absmax_of(const float* values) {
  const IntTag di;
  auto largest = hn::Zero(di);
  for (int64_t i = 0; i < kDynamicBlock; i += float_lanes()) {
    const auto bits = hn::BitCast(di, hn::LoadU(FloatTag(), values + i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(di, 0x7fffffff)));  // bits order like magnitudes, NaN above Inf
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

// codes (kDynamicBlock) of values (kDynamicBlock). Returns their absmax.
inline float encode_block(DynamicMap map, const float* values, uint8_t* codes) {
  const FloatTag df;
  const IntTag di;
  const hn::Rebind<uint8_t, FloatTag> du8;
  const float absmax = absmax_of(values);
  if (!has_codes(absmax)) {
    std::memset(codes, 0, kDynamicBlock);
    return absmax;
  }
  const DynamicMapTable& table = dynamic_map_table(map);
  const auto scale = hn::Set(df, absmax);
  for (int64_t i = 0; i < kDynamicBlock; i += float_lanes()) {
    const auto value = hn::LoadU(df, values + i);
    const auto magnitude = hn::Div(hn::Abs(value), scale);
    const auto cell = hn::Sub(hn::ShiftRight<16>(hn::BitCast(di, magnitude)), hn::Set(di, DynamicMapTable::kFirstCell));
    const auto below = hn::GatherIndex(di, table.positions.data(), hn::Max(cell, hn::Zero(di)));
    const auto next = hn::Ge(magnitude, hn::GatherIndex(df, table.thresholds.data(), below));
    auto position = hn::Sub(below, hn::VecFromMask(di, hn::RebindMask(di, next)));  // a true lane is -1
    if (map == DynamicMap::kUnsigned) {
      const auto lifted = hn::RebindMask(di, hn::Gt(value, hn::Zero(df)));
      position = hn::IfThenElse(lifted, hn::Max(position, hn::Set(di, 1)), position);
    } else {
      const auto negative = hn::RebindMask(di, hn::Lt(value, hn::Zero(df)));
      const auto negated = hn::Neg(hn::Min(position, hn::Set(di, 127)));
      position = hn::IfThenElse(negative, negated, position);
    }
    const auto bytes = hn::And(position, hn::Set(di, 0xff));
    hn::StoreU(hn::DemoteTo(du8, bytes), du8, codes + i);
  }
  return absmax;
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
