// The largest magnitude of what a block has seen and how many of it were not finite, into a QuantizeRecord. Atomics of
// integers: the result is the same in every order of blocks.
#pragma once

#include "core/cuda/device/device.h"
#include "core/kernels/quantize/args.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cuda {

struct MaxBits {
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const { return a < b ? b : a; }
};

constexpr int non_finite(float value) { return is_finite_magnitude(magnitude_bits(value)) ? 0 : 1; }

// amax: of the calling thread, as magnitude_bits(); count(): how many of its elements are not finite, asked for only
// where the block has such. By all threads of a block of one dimension; scratch: shared memory for a word a warp.
template <typename Count>
__device__ __forceinline__ void add_to_record(QuantizeRecord* record, uint32_t amax, const Count& count,
                                              uint32_t* scratch) {
  const uint32_t largest = block_reduce(amax, MaxBits(), scratch);
  if (!is_finite_magnitude(largest)) {
    const uint32_t bad = block_reduce(static_cast<uint32_t>(count()), Sum(), scratch);
    // Of the same size and representation; CUDA has no such function for int64_t.
    auto* const total = reinterpret_cast<unsigned long long*>(&record->non_finite);
    if (threadIdx.x == 0) atomicAdd(total, static_cast<unsigned long long>(bad));
  }
  if (threadIdx.x == 0) atomicMax(&record->amax, largest);
}

}  // namespace mantissa::cuda
