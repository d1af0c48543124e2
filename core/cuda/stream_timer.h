// The time between two points of a CUDA stream, by the GPU's own clock.
#pragma once

#include <memory>

#include "core/cuda/stream.h"
#include "core/tensor/stream.h"

namespace mantissa::cuda {

// Marks are CUDA events, which the stream passes without stopping; the resolution is about half a microsecond. `stream`
// must outlive the result.
std::unique_ptr<StreamTimer> make_stream_timer(CudaStream& stream);

}  // namespace mantissa::cuda
