// Statistics of the blocks of a tensor, and their sum in a record.
#pragma once

#include <vector>

#include "core/kernels/reduction/args.h"

namespace mantissa::cpu {

// One empty TensorStats for each block of parallel_blocks_of_parts(n, parts). Kept between calls, so that the steady
// state allocates nothing.
std::vector<TensorStats>& empty_block_stats(int64_t n, int64_t parts);

// Adds to each record the blocks of its part, in order. Element i of the tensor has index index_offset + i.
void add_to_records(std::vector<TensorStats>& blocks, const Tensor& records, int64_t index_offset);

// The number of records in a tensor that check_args() has seen.
inline int64_t count_stats(const Tensor& records) {
  return records.numel() / static_cast<int64_t>(sizeof(TensorStats));
}

}  // namespace mantissa::cpu
