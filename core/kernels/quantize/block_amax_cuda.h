// Adds a block's amax and its count of non-finite elements to a QuantizeRecord. Integer atomics make the result
// independent of the order of blocks.
#pragma once

#include "core/cuda/device/device.h"
#include "core/kernels/quantize/args.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cuda {

constexpr int non_finite(float value) { return is_finite_magnitude(magnitude_bits(value)) ? 0 : 1; }

// amax: the calling thread's, as magnitude_bits(). count(): the number of its non-finite elements; called only if the
// block has any. All threads of a one-dimensional block must call. scratch: shared memory, one word per warp.
template <typename Count>
__device__ __forceinline__ void add_to_record(QuantizeRecord* record, uint32_t amax, const Count& count,
                                              uint32_t* scratch) {
  const uint32_t largest = block_reduce(amax, MaxBits(), scratch);
  if (!is_finite_magnitude(largest)) {
    const uint32_t bad = block_reduce(static_cast<uint32_t>(count()), Sum(), scratch);
    // CUDA has no atomicAdd for int64_t; unsigned long long has the same size and representation.
    auto* const total = reinterpret_cast<unsigned long long*>(&record->non_finite);
    if (threadIdx.x == 0) atomicAdd(total, static_cast<unsigned long long>(bad));
  }
  if (threadIdx.x == 0) atomicMax(&record->amax, largest);
}

}  // namespace mantissa::cuda
