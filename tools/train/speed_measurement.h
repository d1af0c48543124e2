// The peaks that a run's speed is compared with.
#pragma once

#include "core/backend/registry.h"
#include "tools/train/session.h"
#include "tools/train/speed.h"

namespace mantissa {

// Measures the GEMM peak of all ranks at once, in 0.2 to 0.5 s, and looks up the data sheets of their devices. Ranks
// that share a GPU have no data sheet: each would be promised all of it. Collective.
SpeedContext measure_speed_context(Session& session);

// FLOP/s that the data sheet of the backend's device `index` promises of products as the model has them made; 0:
// nothing.
double promised_flops(const BackendEntry& backend, int index, const PrecisionConfig& precision);

}  // namespace mantissa
