// Sums over rows in two passes: of chunks of rows in parallel, then of the chunks in a fixed order. The division of the
// rows depends on the shape alone, so that every device gives the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/round_up.h"
#include "core/cuda/stream.h"
#include "core/kernels/kernel_args.h"

namespace mantissa::cuda {

struct RowChunks {
  int64_t rows_per_chunk, count;
};

// Fewer than min_rows in a chunk cost more traffic for partial sums than they gain; max_chunks fill a large device.
inline RowChunks divide_rows(int64_t rows, int64_t min_rows, int64_t max_chunks) {
  const int64_t rows_per_chunk = std::max(min_rows, divide_up(rows, max_chunks));
  return {rows_per_chunk, divide_up(rows, rows_per_chunk)};
}

// fp32 sums of `chunks` chunks for each of `columns` columns. Those of target t, chunk k begin at
// partials + (t * chunks + k) * columns.
struct PartialSums {
  const float* partials;
  int64_t chunks, columns;
};

struct SumTarget {
  float* out = nullptr;  // (columns); null: there is no such target
  GradientMode mode = GradientMode::kWrite;
};

// out[c] (+)= the sum over the chunks of column c, for one target or two. Without chunks the sum is 0.
void add_partial_sums(const PartialSums& sums, const SumTarget& first, const SumTarget& second, CudaStream& stream);

}  // namespace mantissa::cuda
