// MPI transport (OpenMPI, CPU memory). MPI itself is seen in this folder only.
//
// Inside of a node, tensors that are sent from allocate_shared() travel without messages: their receivers copy them
// from where they lie (comm/node). Where that is the only node, they also read what lies there without any copy.
//
// Tensors travel as bytes: sums of 16-bit types are our own code (Backend::sum_contributions), MPI has none. Messages
// are cut into pieces below the 2^31 bytes that an MPI count can express. MPI moves large messages only while the
// program is inside of MPI: test() a Work now and then.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/communicator.h"

namespace mantissa {

struct MpiOptions {
  size_t piece_bytes = size_t{1} << 30;  // largest single message
  // Ranks that count as being on one node, at most, in the order of their numbers: several nodes on one machine, for
  // tests. 0: as many as there are.
  int ranks_per_node = 0;
};

// All ranks of the job that mpirun started; one rank without mpirun. Initialises MPI on first use, from the thread that
// then makes all calls (MPI_THREAD_FUNNELED), and finalises it when the last communicator goes.
std::unique_ptr<Communicator> create_mpi_communicator(const MpiOptions& options = {});

}  // namespace mantissa
