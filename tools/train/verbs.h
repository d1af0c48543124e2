// Verbs that train: train, config.
#pragma once

#include <vector>

#include "tools/config/config.h"
#include "tools/config/verb.h"
#include "tools/run/guard/stop_request.h"
#include "tools/run/job/job.h"

namespace mantissa {

void add_train_verbs(CLI::App& app, std::vector<Verb>& verbs);

// A training as `mantissa train` does it, up to its exit code, in a job that has started. Errors: see train_run().
// Collective.
ExitCode run_train_verb(const Config& run, const ConfigOrigins& origins, StopRequest& stop, Job& job);

}  // namespace mantissa
