// ProfilingBackend: a backend that reports every call to a StepProfiler before it forwards the call.
#pragma once

#include "core/backend/backend.h"
#include "core/profile/step_profiler.h"

namespace mantissa {

// `profiler` must outlive the backend. Captured work makes no calls when it is repeated: capture() throws ConfigError.
std::unique_ptr<Backend> create_profiling_backend(std::unique_ptr<Backend> backend, StepProfiler& profiler);

}  // namespace mantissa
