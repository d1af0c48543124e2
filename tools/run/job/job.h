// Starting a verb as one of the ranks of a job, with a device and threads, and ending it on an error.
#pragma once

#include <sched.h>

#include <bitset>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gpu_claim.h"
#include "core/backend/backend.h"
#include "core/base/processor_topology.h"
#include "tools/config/config.h"
#include "tools/run/guard/watchdog.h"

namespace mantissa {

// Rank that the launcher (mpirun, srun) gave this process, 0 when started alone: known before MPI is initialised.
int launcher_rank();
// Processes of the job; 1 when started alone.
int launcher_size();

// ConfigError if device, comm.backend or model.name names something that this program lacks; it lists the choices.
void require_known_names(const Config& config);

// The backend, and the node's device, that a rank computes on.
struct DeviceChoice {
  std::string backend;  // "cuda", "cpu"
  int index = 0;        // among the devices that this process sees
  std::string reason;   // why no better device; empty if this is the best
};

// `wanted` is the configuration's device: a backend, or "auto" for the best that this program and machine have. Ranks
// of a node take its devices in turns. ConfigError saying why if the backend that was asked for cannot be used.
DeviceChoice choose_device(const std::string& wanted, int local_rank);

// Whether the device of choose_device() computes in host memory. A named device need not be usable here.
bool computes_on_host(const std::string& wanted, int local_rank);

// The claim of a rank on its device, to find ranks on the same device.
GpuClaim claim_of(const DeviceChoice& choice);

// ConfigError if the device does not compute in the configuration's precision.
void require_precision(const Config& config, const DeviceChoice& device);
// The chosen device, with the settings of the section `cuda`. ConfigError as above.
std::unique_ptr<Backend> open_device(const Config& config, const DeviceChoice& device);

// The transport that comm.backend names. "auto": local for a process that was started alone, else MPI or, if each rank
// has a GPU of its own that NCCL can use, NCCL; `device` is the configuration's. ConfigError for "local" in a job of
// several processes, for a job whose processes cannot find each other, and if a rank cannot use its device. Collective.
std::unique_ptr<Communicator> start_communicator(const std::string& backend, const std::string& device);
// The choice of "auto" between `host`, a transport of several processes, and NCCL. Logs why not NCCL. Collective.
std::unique_ptr<Communicator> choose_transport(std::unique_ptr<Communicator> host, const std::string& device);

// A verb as one of the ranks of a job. Objects of the verb must be gone before it.
class Job {
 public:
  // Starts communicator and log. ConfigError: see above. Watches the start up to the next watch(). Collective.
  Communicator& start(const Config& config);
  // The same for a rank with a given `communicator`, for example where ranks are threads.
  Communicator& start(const Config& config, std::unique_ptr<Communicator> communicator);
  Communicator& communicator() { return *communicator_; }  // after start()
  // Under a launcher, ends the process if the other ranks do not do the same ("starts MPI") in `factor` times
  // watchdog.least_deadline_s: up to unwatch(), the next call, or the end of the job.
  void watch(const Config& config, double factor, const char* activity);
  void unwatch() { watch_.reset(); }
  // In a handler of an exception: logs it, and returns its exit code. Errors of a job of several ranks end the whole
  // job. `origins` say where a setting was written.
  int failed(const ConfigOrigins& origins = {});

 private:
  std::optional<MeetingWatch> watch_;  // outlives the communicator, whose end waits for all ranks, too
  std::unique_ptr<Communicator> communicator_;
};

// Reads the configuration, starts communicator and log, and runs `body`, while it watches the ranks. Returns the exit
// code: 0, or Job::failed().
int run_job(const std::function<Config()>& configure,
            const std::function<void(const Config& config, Communicator& communicator)>& body);
// Reports an error before the objects of the verb are destroyed: destructors wait for the device and may hang. Several
// ranks do not return from here; a rank alone unwinds to Job::failed(), which does not report the error again.
[[noreturn]] void leave_job(const std::exception& error, Communicator& communicator, const ConfigOrigins& origins = {});

// ---- Threads of a rank: how many, and on which processors of the node.

// Sets the number of threads of this rank and returns it: train.threads, or with 0 OMP_NUM_THREADS if it is a number,
// else an equal share of the node's processors that this rank may use. If train.pin_threads allows it and the CPU
// computes, binds each thread to its own core. Collective.
int set_up_threads(const Config& config, Communicator& communicator);

using ProcessorMask = std::bitset<CPU_SETSIZE>;  // by the operating system's numbers

// The processors that the ranks of a node may run on.
struct NodeProcessors {
  std::vector<int> ranks;            // of this node; empty if they are not known
  std::vector<ProcessorMask> masks;  // by rank of the node; guessed if not known
  size_t index = 0;                  // of this rank among them

  const ProcessorMask& own() const { return masks[index]; }
  // The number of ranks that may run on this rank's processors, itself included.
  int sharing() const;
  // An equal share of these processors; at least one.
  int share() const;
};

// By machine (Node::machine of comm/gpu_claim.h). Collective.
NodeProcessors gather_processors(Communicator& communicator);

// Processors for the threads of the rank. Empty (do not pin) if no other rank shares these processors, if the sharing
// ranks differ in processors or thread count, or if there are fewer cores than threads. `threads`: of the node's ranks,
// in their order.
std::vector<int> choose_processors(const ProcessorTopology& topology, const NodeProcessors& node,
                                   const std::vector<int>& threads);

// Binds this rank's threads as choose_processors() says. A line for the log; empty if they stay free. Collective.
std::string pin_threads(Communicator& communicator, const NodeProcessors& node, int threads);

}  // namespace mantissa
