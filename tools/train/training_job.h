// What `mantissa train` does.
#pragma once

#include "comm/communicator.h"
#include "core/base/error.h"
#include "tools/config/config.h"
#include "tools/run/guard/stop_request.h"

namespace mantissa {

// A training as `mantissa train` does it, up to its exit code. Errors: see train_run(). Collective.
ExitCode run_training(const Config& run, const ConfigOrigins& origins, StopRequest& stop, Communicator& communicator);

}  // namespace mantissa
