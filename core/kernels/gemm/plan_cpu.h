// How a matrix multiplication is partitioned. Every element of c is one chain of multiply-adds in the order of K. So
// results depend neither on the partition nor on the number of threads, and the partition may suit the threads.
#pragma once

#include <cstdint>

#include "core/base/round_up.h"

namespace mantissa::cpu {

// A range cut into parts of equal size; the last may be smaller.
struct Cut {
  int64_t extent = 0, part = 0;

  int64_t count() const { return (extent + part - 1) / part; }
  int64_t begin(int64_t index) const { return index * part; }
  int64_t size(int64_t index) const { return part < extent - begin(index) ? part : extent - begin(index); }
};

// Cuts `extent` into the fewest parts of at most `most`, about equal, in multiples of `multiple` (which divides
// `most`).
Cut cut_evenly(int64_t extent, int64_t most, int64_t multiple);

// Tasks are blocks of c, made of whole tiles of the micro-kernel.
struct GemmTasks {
  // Enough tasks that threads wait for the last ones at most a few per cent of the time.
  static constexpr int64_t kPerThread = 8;

  Cut rows, columns;

  int64_t count() const { return rows.count() * columns.count(); }
};

// A block (m, n) of c to be partitioned for `threads` threads, in tiles of (tile_rows, tile_columns).
struct GemmTaskShape {
  int64_t m, n, tile_rows, tile_columns, threads;
  bool packs_rows;  // tasks pack the rows of a that they read: wide tasks do so less often
};
// Tasks whose operands stay in the second-level cache, but several for each thread.
GemmTasks plan_tasks(const GemmTaskShape& shape);

}  // namespace mantissa::cpu
