// How a matrix multiplication is cut. Every element of c is one chain of multiply-adds in the order of K, however it is
// cut: results depend neither on the cut nor on the number of threads, which may therefore suit each other.
#pragma once

#include <cstdint>

#include "core/base/round_up.h"

namespace mantissa::cpu {

// A range cut into parts of equal size, but for the last.
struct Cut {
  int64_t extent = 0, part = 0;

  int64_t count() const { return (extent + part - 1) / part; }
  int64_t begin(int64_t index) const { return index * part; }
  int64_t size(int64_t index) const { return part < extent - begin(index) ? part : extent - begin(index); }
};

// `extent` in as few parts as `most` allows, about equal, multiples of `multiple` (which divides `most`).
Cut cut_evenly(int64_t extent, int64_t most, int64_t multiple);

// Tasks are blocks of c, of whole tiles of the micro-kernel.
struct GemmTasks {
  // So many that the last ones to end keep the other threads waiting for a few per cent of the time at most.
  static constexpr int64_t kPerThread = 8;

  Cut rows, columns;

  int64_t count() const { return rows.count() * columns.count(); }
};

// What is to be cut: a block (m, n) of c for `threads` threads, in tiles of (tile_rows, tile_columns).
struct GemmTaskShape {
  int64_t m, n, tile_rows, tile_columns, threads;
  bool packs_rows;  // tasks pack the rows of a that they read: wide ones do so less often
};
// Tasks of a size whose operands stay in the second-level cache, but several for each thread.
GemmTasks plan_tasks(const GemmTaskShape& shape);

}  // namespace mantissa::cpu
