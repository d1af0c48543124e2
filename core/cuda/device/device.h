// Include for kernel sources (*.cu.cc): CUDA's device language, `launch`, `shared_memory`, and the project's own small
// device functions. nvcc gets the real ones. A C++ compiler gets an emulation on the host (core/cuda/emulation), which
// tests the same sources without a GPU. Only this header, float8.h and mma.h choose between the two.
//
//   struct LaunchShape { dim3 grid, block; size_t shared_bytes = 0; };
//   launch(kernel, {.grid = blocks, .block = threads, .shared_bytes = bytes}, stream, arguments...);
//
// All shared memory is dynamic: a kernel gets it from shared_memory<T>(), and its launch requests the bytes. So the
// emulation knows where it ends, and nobody mistakes it for zeroed memory.
#pragma once

#ifdef __CUDACC__
#include "core/cuda/device/native_device.h"
#else
#include "core/cuda/emulation/builtins.h"
#include "core/cuda/emulation/launch.h"
#endif

#include "core/base/check.h"
#include "core/base/round_up.h"
#include "core/cuda/device/reduce.h"
#include "core/cuda/device/vector.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

// The number of blocks for a launch, enough to fill the device and no more than there is work for. One block does
// `items_per_block` of the `items` pieces of work at a time, and goes round in a loop when there are more. Eight blocks
// of 256 threads are what a multiprocessor holds at most.
inline unsigned blocks_for(int64_t items, int64_t items_per_block, const CudaStream& stream,
                           int blocks_per_multiprocessor = 8) {
  const int64_t needed = divide_up(items, items_per_block);
  return static_cast<unsigned>(
      std::clamp<int64_t>(needed, 1, int64_t{blocks_per_multiprocessor} * stream.multiprocessors()));
}

// The address of the first of the plain records in a tensor of bytes. ContractError where a GPU could not access it.
template <typename Record>
Record* record_in(const char* op, const Tensor& tensor) {
  MANTISSA_CHECK(reinterpret_cast<uintptr_t>(tensor.raw()) % alignof(Record) == 0,
                 "[{}] a record must be aligned to {} bytes on a GPU", op, alignof(Record));
  return reinterpret_cast<Record*>(tensor.raw());
}

// record_in() of a result, which is cleared first with kWrite.
template <typename Record>
Record* start_record(const char* op, const Tensor& tensor, GradientMode mode, CudaStream& stream) {
  auto* const record = record_in<Record>(op, tensor);
  if (mode == GradientMode::kWrite) set_bytes_async(record, 0, sizeof(Record), stream.handle());
  return record;
}

}  // namespace mantissa::cuda
