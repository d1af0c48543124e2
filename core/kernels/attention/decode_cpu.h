// The cache of keys and values on the CPU: checks of places, writing to it, and the tasks that read it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/cpu/parallel.h"
#include "core/kernels/attention/args.h"
#include "core/kernels/check_args.h"

namespace mantissa::cpu {

enum class CachedPlace : uint8_t { kEveryRow, kOrNone };

// Reads host memory. Other places would reach foreign memory.
inline void check_places(const char* op, const auto& args, CachedPlace needed) {
  const int32_t *const sequences = args.sequences.template data<int32_t>(), *const positions =
                                                                                args.positions.template data<int32_t>();
  for (int64_t row = 0; row < args.positions.numel(); ++row) {
    if (needed == CachedPlace::kOrNone && positions[row] < 0) continue;
    MANTISSA_CHECK(sequences[row] >= 0 && sequences[row] < args.shape.batch && positions[row] >= 0 &&
                       positions[row] < args.shape.sequence_length,
                   "[{}] the cache has {} sequences of {} positions, got position {} of sequence {} in row {}", op,
                   args.shape.batch, args.shape.sequence_length, positions[row], sequences[row], row);
  }
}

// run(), for every dtype.
inline void append_to_cache(const AttentionAppendArgs& args) {
  const int64_t rows = check_args(args);
  check_places("attention_append", args, CachedPlace::kOrNone);
  const AttentionShape& shape = args.shape;
  const int64_t bytes = size_bytes(args.qkv.dtype()), head_bytes = shape.head_dim * bytes;
  parallel_rows(rows, 2 * shape.num_kv_heads * shape.head_dim, [&](int64_t row) {
    const int64_t sequence = args.sequences.data<int32_t>()[row], position = args.positions.data<int32_t>()[row];
    if (position < 0) return;
    const std::byte* from = args.qkv.raw() + (row * shape.qkv_row() + shape.out_row()) * bytes;
    for (int64_t head = 0; head < 2 * shape.num_kv_heads; ++head, from += head_bytes) {
      std::byte* const to = args.cache.raw() + cache_offset(shape, sequence, head) * bytes + position * head_bytes;
      std::copy_n(from, head_bytes, to);
    }
  });
}

// Keys of a task are within a multiple of this.
constexpr int64_t kDecodeChunk = 256;

// Keys [begin, end) of a key head that a row sees.
struct DecodeTask {
  int64_t row, kv_head, begin, end;
};

// The results of a task: (G), (G) and (G, D), for the query heads of its key head.
struct DecodePart {
  float *maxima, *totals, *sums;
};

}  // namespace mantissa::cpu
