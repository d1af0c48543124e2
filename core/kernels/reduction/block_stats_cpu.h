// Statistics of the blocks of a tensor, and their sum in a record.
#pragma once

#include <vector>

#include "core/kernels/reduction/args.h"

namespace mantissa::cpu {

// One empty TensorStats for each block of n elements. Kept between calls, so that the steady state allocates nothing.
std::vector<TensorStats>& empty_block_stats(int64_t n);

// record += all blocks, in order. Element i of the tensor has index index_offset + i.
void add_to_record(std::vector<TensorStats>& blocks, const Tensor& record, int64_t index_offset);

}  // namespace mantissa::cpu
