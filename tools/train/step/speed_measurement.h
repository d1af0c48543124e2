// The peaks of a run's devices.
#pragma once

#include "core/backend/registry.h"
#include "tools/model/runtime/model_runtime.h"
#include "tools/run/metrics/step_report.h"

namespace mantissa {

// Measures the peak of all ranks at once, in 0.2 to 0.7 s, unless train.measure_peak is false, and looks up the
// data sheets of their devices. Ranks that share a GPU have no data sheet: each would be promised all of it.
// Collective.
SpeedContext measure_speed_context(const Config& config, const DeviceChoice& device, ModelRuntime& runtime,
                                   Communicator& communicator);

// FLOP/s that the data sheet of the backend's device `index` promises for products in this precision; 0: nothing.
double promised_flops(const BackendEntry& backend, int index, const PrecisionConfig& precision);

}  // namespace mantissa
