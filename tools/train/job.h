// A verb as one of the ranks of a job: how it starts, and how its errors end it.
#pragma once

#include <exception>
#include <functional>

#include "comm/communicator.h"
#include "tools/config/config.h"

namespace mantissa {

// Reads the configuration, starts communicator and log, and runs `body`. Returns the exit code: 0, or that of the
// error, which is logged. Errors of a job of several ranks end the whole job.
int run_job(const std::function<Config()>& configure,
            const std::function<void(const Config& config, Communicator& communicator)>& body);

// For a body that must tell an error while what it holds is still there: objects whose end waits for a device where the
// work that failed may hang. Several ranks do not return from here; a rank alone leaves run_job() from here.
[[noreturn]] void leave_job(const std::exception& error, Communicator& communicator);

}  // namespace mantissa
