// What kernel sources (*.cu.cc) include: CUDA's device language, `launch`, `shared_memory`, and the project's own small
// device functions. Under nvcc these are the real ones; under a C++ compiler an emulation on the host
// (core/cuda/emulation) stands in, with which the same sources are tested where there is no GPU. The one place that
// knows of both.
//
//   struct LaunchShape { dim3 grid, block; size_t shared_bytes = 0; };
//   launch(kernel, {.grid = blocks, .block = threads, .shared_bytes = bytes}, stream, arguments...);
//
// All shared memory is dynamic: a kernel takes it by shared_memory<T>(), and its launch asks for the bytes. So its end
// is known to the emulation, and it is never mistaken for zeroed.
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
