// ProfilingCommunicator: a communicator that reports every collective to a StepProfiler.
#pragma once

#include "comm/communicator.h"
#include "core/profile/step_profiler.h"

namespace mantissa {

// Both must outlive it. It counts the bytes that this rank sends to others. On the host (StreamOrder::kInline) the time
// of a collective includes tests and waits; beside a GPU's streams, waits only.
std::unique_ptr<Communicator> create_profiling_communicator(Communicator& communicator, StepProfiler& profiler);

}  // namespace mantissa
