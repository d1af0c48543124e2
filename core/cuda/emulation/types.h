// Conversion between storage types and fp32 on the emulated GPU: see device/native_types.h.
#pragma once

#include <bit>

#include "core/tensor/half.h"

namespace mantissa::cuda {

template <typename T>
float widen(T value) {
  return to_float(value);
}

template <typename T>
T narrow(float value) {
  return from_float<T>(value);
}

inline unsigned float_bits(float value) { return std::bit_cast<unsigned>(value); }
inline float float_from_bits(unsigned bits) { return std::bit_cast<float>(bits); }

}  // namespace mantissa::cuda
