// CUDA graphs: work recorded once and queued as a whole, for one launch's worth of the host's time.
#pragma once

#include <functional>
#include <memory>

#include "core/cuda/stream.h"

namespace mantissa::cuda {

// Backend::capture(). `stream` must outlive the result. If `body` throws, nothing is captured and the exception passes.
std::unique_ptr<CapturedWork> capture_graph(CudaStream& stream, const std::function<void()>& body);

}  // namespace mantissa::cuda
