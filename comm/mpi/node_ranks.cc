#include "comm/mpi/node_ranks.h"

#include <fmt/core.h>

#include "comm/mpi/mpi_environment.h"

namespace mantissa {
namespace {

void describe(MpiContext& context) {
  check_mpi(MPI_Comm_set_errhandler(context.communicator, MPI_ERRORS_RETURN), "create", 0, context);
  MPI_Comm_rank(context.communicator, &context.rank);
  MPI_Comm_size(context.communicator, &context.size);
}

}  // namespace

CommError collective_error(const char* collective, size_t bytes, const MpiContext& context, const std::string& text) {
  return CommError(
      fmt::format("[{}] rank {} of {}, {} bytes: {}", collective, context.rank, context.size, bytes, text));
}

void check_mpi(int code, const char* collective, size_t bytes, const MpiContext& context) {
  if (code != MPI_SUCCESS) throw collective_error(collective, bytes, context, mpi_error_text(code));
}

MpiContext duplicate_world() {
  MpiContext world;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world.communicator), "create", 0, world);
  describe(world);
  return world;
}

MpiContext split_into_nodes(const MpiContext& world, int ranks_per_node) {
  MpiContext node;
  check_mpi(
      MPI_Comm_split_type(world.communicator, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &node.communicator),
      "create", 0, world);
  describe(node);
  if (ranks_per_node == 0) return node;
  const MpiContext piece = split_by_color(node, node.rank / ranks_per_node);
  MPI_Comm_free(&node.communicator);
  return piece;
}

MpiContext split_by_color(const MpiContext& job, int color) {
  MpiContext group;
  check_mpi(MPI_Comm_split(job.communicator, color, job.rank, &group.communicator), "create", 0, job);
  describe(group);
  return group;
}

std::vector<int> ranks_within(const MpiContext& world, const MpiContext& node) {
  std::vector<int> members(static_cast<size_t>(node.size)), ranks(static_cast<size_t>(world.size), -1);
  check_mpi(MPI_Allgather(&world.rank, 1, MPI_INT, members.data(), 1, MPI_INT, node.communicator), "create", 0, node);
  for (size_t index = 0; index < members.size(); ++index) {
    ranks[static_cast<size_t>(members[index])] = static_cast<int>(index);
  }
  return ranks;
}

}  // namespace mantissa
