// How kernels divide work over threads. Every division depends on the shape only, never on the number of threads:
// partial sums are always the same and are added in the same order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/round_up.h"
#include "core/base/thread_team.h"

namespace mantissa::cpu {

// Elements per task. Smaller work stays on the calling thread.
constexpr int64_t kBlockElements = 16384;

// Calls body(begin, count) for blocks of [0, n), in parallel.
template <typename Body>
void parallel_blocks(int64_t n, const Body& body) {
  parallel_for(divide_up(n, kBlockElements), [&](int64_t block) {
    const int64_t begin = block * kBlockElements;
    body(begin, std::min(kBlockElements, n - begin));
  });
}

// The same for each of `parts` equal parts of [0, n): calls body(begin, count, block), blocks numbered part by part.
template <typename Body>
void parallel_blocks_of_parts(int64_t n, int64_t parts, const Body& body) {
  const int64_t size = n / parts, blocks = divide_up(size, kBlockElements);
  parallel_for(parts * blocks, [&](int64_t block) {
    const int64_t within = block % blocks * kBlockElements;
    body(block / blocks * size + within, std::min(kBlockElements, size - within), block);
  });
}

// Calls body(row) for rows of `columns` elements, in parallel if there is enough work.
template <typename Body>
void parallel_rows(int64_t rows, int64_t columns, const Body& body) {
  const int64_t rows_per_task = divide_up(kBlockElements, std::max<int64_t>(1, columns));
  parallel_for(divide_up(rows, rows_per_task), [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * rows_per_task);
    for (int64_t row = task * rows_per_task; row < end; ++row) body(row);
  });
}

// Divides rows into at most 64 blocks of at least 16 rows. Each block adds its rows into its own partial sum.
struct RowBlocks {
  explicit RowBlocks(int64_t row_count)
      : rows(row_count),
        rows_per_block(std::max<int64_t>(16, divide_up(row_count, 64))),
        count(divide_up(rows, rows_per_block)) {}
  int64_t begin(int64_t block) const { return block * rows_per_block; }
  int64_t end(int64_t block) const { return std::min(rows, (block + 1) * rows_per_block); }

  int64_t rows, rows_per_block, count;
};

}  // namespace mantissa::cpu
