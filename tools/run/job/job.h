// Starting a verb as one of the ranks of a job, and ending it on an error.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "tools/config/config.h"

namespace mantissa {

// Rank that the launcher (mpirun, srun) gave this process, 0 when started alone: known before MPI is initialised.
int launcher_rank();
// Processes of the job; 1 when started alone.
int launcher_size();

// ConfigError that lists what this program has if device, comm.backend or model.name names something else.
void require_known_names(const Config& config);

// The transport that comm.backend names. "auto": local for a process that was started alone, else MPI or, if each rank
// has a GPU of its own that NCCL can use, NCCL; `device` is the configuration's. ConfigError for "local" in a job of
// several processes, for a job whose processes cannot find each other, and if a rank cannot use its device. Collective.
std::unique_ptr<Communicator> start_communicator(const std::string& backend, const std::string& device);
// The choice of "auto" between `host`, a transport of several processes, and NCCL. Logs why not NCCL. Collective.
std::unique_ptr<Communicator> choose_transport(std::unique_ptr<Communicator> host, const std::string& device);

// A verb as one of the ranks of a job. Objects of the verb must be gone before it.
class Job {
 public:
  // Starts communicator and log. ConfigError: see above. Collective.
  Communicator& start(const Config& config);
  // The same as a rank of `communicator`, such as one of ranks that are threads.
  Communicator& start(const Config& config, std::unique_ptr<Communicator> communicator);
  // In a handler of an exception: logs it, and returns its exit code. Errors of a job of several ranks end the whole
  // job. `origins` say where a setting was written.
  int failed(const ConfigOrigins& origins = {});

 private:
  std::unique_ptr<Communicator> communicator_;
};

// Reads the configuration, starts communicator and log, and runs `body`. Returns the exit code: 0, or Job::failed().
int run_job(const std::function<Config()>& configure,
            const std::function<void(const Config& config, Communicator& communicator)>& body,
            const ConfigOrigins& origins = {});
// Reports an error before the objects of the verb are destroyed: destructors wait for the device and may hang. Several
// ranks do not return from here; a rank alone unwinds to Job::failed(), which does not report the error again.
[[noreturn]] void leave_job(const std::exception& error, Communicator& communicator, const ConfigOrigins& origins = {});

}  // namespace mantissa
