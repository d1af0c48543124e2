// The MPI communicators of the job: of all ranks, and of those that share a node.
#pragma once

#include <vector>

#include "comm/mpi/mpi_environment.h"

namespace mantissa {

// All three throw CommError. The communicators return errors instead of ending the job, and are to be freed.

MpiContext duplicate_world();
// The ranks on this rank's node, in the order of `world`. Where ranks_per_node is not 0, nodes are cut into pieces of
// so many ranks, the last of which may be smaller.
MpiContext split_into_nodes(const MpiContext& world, int ranks_per_node);
// By rank of `world`: its number in `node`, or -1.
std::vector<int> ranks_within(const MpiContext& world, const MpiContext& node);

}  // namespace mantissa
