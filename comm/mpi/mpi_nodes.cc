#include "comm/mpi/mpi_nodes.h"

#include <numeric>

namespace mantissa {
namespace {

void describe(MpiContext& context) {
  check_mpi(MPI_Comm_set_errhandler(context.communicator, MPI_ERRORS_RETURN), "create", 0, context);
  MPI_Comm_rank(context.communicator, &context.rank);
  MPI_Comm_size(context.communicator, &context.size);
}

}  // namespace

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
  MpiContext piece;
  check_mpi(MPI_Comm_split(node.communicator, node.rank / ranks_per_node, node.rank, &piece.communicator), "create", 0,
            world);
  MPI_Comm_free(&node.communicator);
  describe(piece);
  return piece;
}

std::vector<int> ranks_within(const MpiContext& world, const MpiContext& node) {
  MPI_Group all = MPI_GROUP_NULL, local = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(world.communicator, &all), "create", 0, world);
  check_mpi(MPI_Comm_group(node.communicator, &local), "create", 0, world);
  std::vector<int> ranks(static_cast<size_t>(world.size)), translated(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  check_mpi(MPI_Group_translate_ranks(all, world.size, ranks.data(), local, translated.data()), "create", 0, world);
  MPI_Group_free(&all);
  MPI_Group_free(&local);
  for (int& rank : translated) {
    if (rank == MPI_UNDEFINED) rank = -1;
  }
  return translated;
}

}  // namespace mantissa
