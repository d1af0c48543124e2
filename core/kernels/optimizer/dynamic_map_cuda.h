// The maps of core/quant/dynamic_map.h as tables in shared memory, which each block computes when it begins.
#pragma once

#include "core/cuda/device/device.h"
#include "core/quant/dynamic_map.h"

namespace mantissa::cuda {

template <DynamicMap kMap>
struct DynamicMapTable {
  static constexpr int kLast = last_position(kMap);

  float magnitudes[kLast + 1], thresholds[kLast];  // by position

  // By all threads; a barrier must follow.
  __device__ __forceinline__ void compute() {
    for (int position = static_cast<int>(threadIdx.x); position <= kLast; position += static_cast<int>(blockDim.x)) {
      magnitudes[position] = dynamic_magnitude(kMap, position);
      if (position < kLast) thresholds[position] = dynamic_threshold(kMap, position);
    }
  }

  __device__ __forceinline__ float decode(uint8_t code, float absmax) const {
    if (kMap == DynamicMap::kUnsigned || code <= 128) return magnitudes[code] * absmax;
    return -magnitudes[256 - code] * absmax;
  }

  __device__ __forceinline__ uint8_t encode(float value, float absmax) const {
    return encode_dynamic(kMap, value, absmax, thresholds);
  }
};

}  // namespace mantissa::cuda
