// NaN and Inf in masters and moments, which no later step mends: AdamW's kernels note them (AdamWArgs::faults) and the
// verdict about the next step carries the note to all ranks. Before a state is saved or handed on, it is asked for.
#pragma once

#include <string>

#include "comm/sharded_state.h"

namespace mantissa {

// Whether the state of any rank is faulty. Waits for the queued updates; the same on all ranks. Collective.
bool has_state_faults(const ShardedState& state);

// Names the first fault in order of parameter, tensor and element over all ranks: "the second moment v of 'head.weight'
// is Inf at element 7, on rank 1". Empty if there is none. Slow; the same on all ranks. Collective.
std::string describe_state_faults(const ShardedState& state);

}  // namespace mantissa
