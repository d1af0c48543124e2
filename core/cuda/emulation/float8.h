// 8-bit floats on the emulated GPU: see device/float8.h.
#pragma once

#include "core/cuda/emulation/builtins.h"
#include "core/tensor/format.h"

namespace mantissa::cuda {

inline float widen(Float8E4M3 value) { return decode(Format::kE4M3, value.bits); }
inline float widen(Float8E5M2 value) { return decode(Format::kE5M2, value.bits); }

template <>
inline Float8E4M3 narrow<Float8E4M3>(float value) {
  return {static_cast<uint8_t>(encode(Format::kE4M3, value, Saturation::kNo))};
}
template <>
inline Float8E5M2 narrow<Float8E5M2>(float value) {
  return {static_cast<uint8_t>(encode(Format::kE5M2, value, Saturation::kNo))};
}

template <typename T>
T narrow_saturated(float value);
template <>
inline Float8E4M3 narrow_saturated<Float8E4M3>(float value) {
  return {static_cast<uint8_t>(encode(Format::kE4M3, value, Saturation::kYes))};
}
template <>
inline Float8E5M2 narrow_saturated<Float8E5M2>(float value) {
  return {static_cast<uint8_t>(encode(Format::kE5M2, value, Saturation::kYes))};
}

}  // namespace mantissa::cuda
