// MPI transport (OpenMPI, CPU memory). MPI's headers are included in this folder only.
//
// Within a node, tensors that are sent from node_memory() travel without messages: receivers copy them in place
// (comm/node). If all ranks are on one node, they can also read each other's memory without a copy.
//
// Tensors travel as bytes: MPI cannot add 16-bit types, so sums are our own code (SumContributionsArgs). Messages are
// cut into pieces below the 2^31 bytes that an MPI count can express. They move only within MPI's calls: test() often.
#pragma once

#include "comm/communicator.h"

namespace mantissa {

struct MpiOptions {
  size_t piece_bytes = size_t{1} << 30;  // largest single message
  // The most ranks in a node, in order of their numbers, for tests with several nodes on a machine. 0: no limit.
  int ranks_per_node = 0;
};

// All ranks of mpirun's job; a single rank without mpirun. The first use initializes MPI, from the thread that then
// makes all calls (MPI_THREAD_FUNNELED); MPI is finalized when the last communicator goes.
std::unique_ptr<Communicator> create_mpi_communicator(const MpiOptions& options = {});

}  // namespace mantissa
