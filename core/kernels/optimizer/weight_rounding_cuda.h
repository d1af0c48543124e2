// How a kernel makes weights of fp32 values: a struct with
//   template <int Width, typename W> void store_weight(W* weight, const float (&w)[Width], int64_t i, uint32_t number)
// which rounds w into weights i ... i + Width - 1 in update number `number`.
#pragma once

#include "core/cuda/device/random_words.h"
#include "core/tensor/half.h"

namespace mantissa::cuda {

// Ties to even.
struct Nearest {
  template <int Width, typename W>
  __device__ __forceinline__ void store_weight(W* weight, const float (&w)[Width], int64_t i, uint32_t) const {
    store<Width>(weight + i, w);
  }
};

// By core/tensor/half.h, with a quarter of a call of Philox for each weight.
struct Stochastic {
  uint64_t key;
  int64_t first_group;  // of four elements: where the parameter's part begins
  uint32_t parameter;

  template <int Width, typename W>
  __device__ __forceinline__ void store_weight(W* weight, const float (&w)[Width], int64_t i, uint32_t number) const {
    const auto words_of = [&](int64_t local) {
      const auto group = static_cast<uint64_t>(first_group + local);
      return philox(key, {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), parameter, number});
    };
    uint32_t words[Width];
    draw_words(i, words_of, words);
    Vector<W, Width> packed;
#pragma unroll
    for (int k = 0; k < Width; ++k) packed.values[k] = round_stochastically<W>(w[k], words[k]);
    *reinterpret_cast<Vector<W, Width>*>(weight + i) = packed;
  }
};

}  // namespace mantissa::cuda
