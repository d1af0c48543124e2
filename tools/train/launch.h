// How this process was started: alone, or as one of the ranks of a job.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "tools/config/config.h"

namespace mantissa {

// Rank that the launcher (mpirun, srun) gave this process, 0 when started alone: known before MPI is initialised.
int launcher_rank();
// Processes of the job; 1 when started alone.
int launcher_size();

// ConfigError listing what this program has if device, comm.backend or model.name names something else.
void require_known_names(const Config& config);

// The transport that comm.backend names; "auto": local for a process that was started alone, else mpi or nccl
// (transport_choice.h), for which the configuration's `device` is. ConfigError for "local" in a job of several
// processes, and for a job whose processes cannot find each other.
std::unique_ptr<Communicator> start_communicator(const std::string& backend, const std::string& device);

// Sets the number of threads of this rank: train.threads, or with 0 OMP_NUM_THREADS if that is a number, else the
// processors that this rank may use, shared among the ranks of the node that may use the same ones. Returns it. Binds
// them where train.pin_threads and thread_pinning.h say so and the CPU computes. Collective.
int set_up_threads(const Config& config, Communicator& communicator);

}  // namespace mantissa
