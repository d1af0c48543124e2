// Care for "vader", OpenMPI's shared memory between the ranks of a node: where it cannot work, and the files that jobs
// leave which were killed.
#pragma once

#include <cstddef>
#include <string>

namespace mantissa {

// Before MPI_Init. Leaves vader out if the launcher stands outside of this rank's PID namespace, as with a container
// for each rank: vader takes a segment for its own if the other rank has the same process number (a crash in OpenMPI
// 4.1.4), and reads memory of the process that has the other rank's number here. Ranks decide alone: OpenMPI takes
// vader for pairs that both have it. Changes the environment.
void leave_vader_out_of_foreign_namespaces();

struct LeftSegments {
  int files = 0;
  size_t bytes = 0;
};

// Removes vader's files of this user in `folder` that no process has open or mapped. OpenMPI leaves them when mpirun is
// killed; they take memory until the node starts again. Keeps those that were made by a process into which this user
// may not look. Does nothing outside of the machine's first PID namespace, where processes may be invisible.
LeftSegments remove_left_segments(const std::string& folder = "/dev/shm");

}  // namespace mantissa
