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
#include "core/cuda/device/native_launch.h"
#include "core/cuda/device/native_types.h"
#else
#include "core/cuda/emulation/builtins.h"
#include "core/cuda/emulation/launch.h"
#include "core/cuda/emulation/types.h"
#endif

#include "core/cuda/device/reduce.h"
#include "core/cuda/device/vector.h"
#include "core/cuda/stream.h"
