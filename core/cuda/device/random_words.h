// Random words for neighbouring elements. Each aligned group of four elements shares one Philox call.
#pragma once

#include "core/cuda/device/device.h"
#include "core/tensor/philox.h"

namespace mantissa::cuda {

// The words of elements 4 * group ... 4 * group + 3 of a parameter, in an update or step: the same on all ranks.
__device__ __forceinline__ PhiloxCounter element_words(uint64_t key, int64_t group, uint32_t parameter,
                                                       uint32_t number) {
  const auto bits = static_cast<uint64_t>(group);
  return philox(key, {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32), parameter, number});
}

// Draws the words of elements begin ... begin + Width - 1. Width is 1, or a multiple of 4 that divides begin.
// words_of(group): the words of elements 4 * group ... 4 * group + 3.
template <int Width, typename WordsOf>
__device__ __forceinline__ void draw_words(int64_t begin, const WordsOf& words_of, uint32_t (&words)[Width]) {
  if constexpr (Width == 1) {
    const PhiloxCounter group = words_of(begin / 4);
    const bool upper = (begin & 2) != 0;  // selected, not indexed: registers have no addresses
    words[0] = (begin & 1) != 0 ? (upper ? group[3] : group[1]) : (upper ? group[2] : group[0]);
  } else {
    static_assert(Width % 4 == 0);
#pragma unroll
    for (int k = 0; k < Width; k += 4) {
      const PhiloxCounter group = words_of((begin + k) / 4);
#pragma unroll
      for (int word = 0; word < 4; ++word) words[k + word] = group[static_cast<size_t>(word)];
    }
  }
}

}  // namespace mantissa::cuda
