// Encodes and decodes whole blocks, bit for bit as core/quant/dynamic_map.h.
//
// Included once per instruction set, after simd-inl.h.
#if defined(MANTISSA_CORE_CPU_DYNAMIC_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_DYNAMIC_MAP_INL_H_
#undef MANTISSA_CORE_CPU_DYNAMIC_MAP_INL_H_
#else
#define MANTISSA_CORE_CPU_DYNAMIC_MAP_INL_H_
#endif

#include "core/cpu/simd-inl.h"
#include "core/kernels/optimizer/dynamic_map_table_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// values (kDynamicBlock) of the codes (kDynamicBlock).
inline void decode_block(DynamicMap map, const uint8_t* codes, float absmax, float* values) {
  const FloatTag df;
  const hn::RebindToSigned<FloatTag> di;
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
  const hn::RebindToSigned<FloatTag> di;
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
  const hn::RebindToSigned<FloatTag> di;
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
