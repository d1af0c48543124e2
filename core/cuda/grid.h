// How many blocks a kernel is launched with: enough to fill the device, no more than there is work for.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/cuda/stream.h"

namespace mantissa::cuda {

// Blocks for `items` pieces of work of which one block does `items_per_block` at a time, going round in a loop when
// there are more. Eight blocks of 256 threads are what a multiprocessor holds at most.
inline unsigned blocks_for(int64_t items, int64_t items_per_block, const CudaStream& stream,
                           int blocks_per_multiprocessor = 8) {
  const int64_t needed = (items + items_per_block - 1) / items_per_block;
  return static_cast<unsigned>(
      std::clamp<int64_t>(needed, 1, int64_t{blocks_per_multiprocessor} * stream.multiprocessors()));
}

}  // namespace mantissa::cuda
