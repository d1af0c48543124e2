// Starting a verb as one of the ranks of a job, its threads, and ending it on an error.
#pragma once

#include <sched.h>

#include <bitset>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/base/processor_topology.h"
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

// Reads the configuration, starts communicator and log, and runs `body`. Returns the exit code: 0, or that of the
// error, which is logged. Errors of a job of several ranks end the whole job. `origins`, which `configure` may fill,
// tell where a setting was written that an error is about.
int run_job(const std::function<Config()>& configure,
            const std::function<void(const Config& config, Communicator& communicator)>& body,
            const ConfigOrigins& origins = {});
// Reports an error from within `body` before its objects are destroyed: destructors wait for the device and may hang.
// Several ranks do not return from here; a rank alone leaves run_job() from here.
[[noreturn]] void leave_job(const std::exception& error, Communicator& communicator, const ConfigOrigins& origins = {});

// ---- Threads of a rank: how many, and on which processors of the node.

// Sets the number of threads of this rank and returns it: train.threads, or with 0 OMP_NUM_THREADS if that is a number,
// else an equal share of the processors that this rank and others of the node may use. Binds the threads, if
// train.pin_threads allows it and the CPU computes, each to a core of its own. Collective.
int set_up_threads(const Config& config, Communicator& communicator);

using ProcessorMask = std::bitset<CPU_SETSIZE>;  // by the operating system's numbers

// The processors that the ranks of a node may run on.
struct NodeProcessors {
  std::vector<int> ranks;            // of this node; empty if it is not clear which those are
  std::vector<ProcessorMask> masks;  // of each; guessed if it is not clear
  size_t index = 0;                  // of this rank among them

  const ProcessorMask& own() const { return masks[index]; }
  // Ranks that may run on the same processors as this one, itself included.
  int sharing() const;
  // An equal share of these processors; at least one.
  int share() const;
};

// By machine (Node::machine of comm/gpu_claim.h). Collective.
NodeProcessors gather_processors(Communicator& communicator);

// Processors for the threads of the rank, among those that it shares with others. None, so that threads stay free, if
// it shares them with nobody, with ranks that may also run elsewhere or have another number of threads, or if there are
// fewer cores than threads. `threads`: of the node's ranks, in their order.
std::vector<int> choose_processors(const ProcessorTopology& topology, const NodeProcessors& node,
                                   const std::vector<int>& threads);

// Binds this rank's threads as choose_processors() says. Returns a line for the log; empty if they stay free.
// Collective.
std::string pin_threads(Communicator& communicator, const NodeProcessors& node, int threads);

}  // namespace mantissa
