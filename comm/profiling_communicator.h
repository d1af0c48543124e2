// ProfilingCommunicator: a communicator that tells a StepProfiler of every collective before it hands it on.
#pragma once

#include "comm/communicator.h"
#include "core/profile/step_profiler.h"

namespace mantissa {

// Both must outlive it. Bytes are those that this rank sends to others, for host
// records too. Where the host carries them out (StreamOrder::kInline), looks at collectives under way and
// waits for them are part of their time; for a GPU's streams the waits alone.
std::unique_ptr<Communicator> create_profiling_communicator(Communicator& communicator, StepProfiler& profiler);

}  // namespace mantissa
