// How a kernel rounds elements of a matrix to a format of at most 8 bits: a struct with
//   Rows rows_from(int64_t row)
//       where the rows from `row` on are, for the other two; Rows next(Rows) is the row after it.
//   template <int Width> void round(const NarrowFormat& format, Rows row, int64_t column, float (&values)[Width])
//       rounds elements column ... column + Width - 1 of that row; column is a multiple of Width.
#pragma once

#include "core/cuda/device/random_words.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cuda {

// Ties to even.
struct NarrowNearest {
  struct Rows {};
  __device__ __forceinline__ Rows rows_from(int64_t) const { return {}; }
  __device__ __forceinline__ Rows next(Rows rows) const { return rows; }

  template <int Width>
  __device__ __forceinline__ void round(const NarrowFormat& format, Rows, int64_t, float (&values)[Width]) const {
#pragma unroll
    for (int k = 0; k < Width; ++k) values[k] = round_to(format, values[k]);
  }
};

// As StochasticArgs says. Width is 1, or a multiple of 4 that divides the number of columns.
struct NarrowStochastic {
  uint64_t seed;
  const int32_t* step;
  uint32_t site, first_sample;
  int64_t rows_per_sample, columns;

  struct Rows {
    int64_t sample, row;  // of the sample
  };
  // One division; the rows that follow are counted.
  __device__ __forceinline__ Rows rows_from(int64_t row) const {
    const int64_t sample = row / rows_per_sample;
    return {sample, row - sample * rows_per_sample};
  }
  __device__ __forceinline__ Rows next(Rows rows) const {
    return rows.row + 1 < rows_per_sample ? Rows{rows.sample, rows.row + 1} : Rows{rows.sample + 1, 0};
  }

  template <int Width>
  __device__ __forceinline__ void round(const NarrowFormat& format, Rows rows, int64_t column,
                                        float (&values)[Width]) const {
    const auto words_of = [&](int64_t group) {
      return philox(seed, {static_cast<uint32_t>(group), site, first_sample + static_cast<uint32_t>(rows.sample),
                           static_cast<uint32_t>(*step)});
    };
    uint32_t words[Width];
    draw_words(rows.row * columns + column, words_of, words);
#pragma unroll
    for (int k = 0; k < Width; ++k) values[k] = round_stochastically_to(format, values[k], words[k]);
  }
};

}  // namespace mantissa::cuda
