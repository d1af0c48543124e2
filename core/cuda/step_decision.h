// The decision about one update: core/backend/update_decision.h.
#pragma once

#include "core/backend/update_decision.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void record_verdict(const RecordVerdictArgs& args, CudaStream& stream);
void decide_update(const DecideUpdateArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
