// MpiContext: ranks with an MPI communicator of their own: the whole job, or its ranks on a node.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "core/base/error.h"

namespace mantissa {

struct MpiContext {
  int rank = 0;
  int size = 1;
  MPI_Comm communicator = MPI_COMM_NULL;
};

CommError collective_error(const char* collective, size_t bytes, const MpiContext& context, const std::string& text);
// CommError naming the collective, rank, size and bytes unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* collective, size_t bytes, const MpiContext& context);

// The next two make communicators that return errors instead of ending the job; the caller frees them.
MpiContext duplicate_world();
// The ranks on this rank's node, in the order of `world`. Unless ranks_per_node is 0, in pieces of so many, or fewer.
MpiContext split_into_nodes(const MpiContext& world, int ranks_per_node);
// The ranks of `job` that give the same color, in the order of `job`.
MpiContext split_by_color(const MpiContext& job, int color);
// By rank of `world`: its number in `node`, or -1.
std::vector<int> ranks_within(const MpiContext& world, const MpiContext& node);

}  // namespace mantissa
