#include "comm/mpi/mpi_environment.h"

#include <mpi.h>

#include <cstdlib>

#include "comm/communicator.h"
#include "core/base/log.h"
#include "core/base/process.h"

namespace mantissa {
namespace {

// Leaves out "vader", OpenMPI's shared memory between the ranks of a node, if the launcher stands outside of this
// rank's PID namespace, as with a container for each rank. There, vader takes a segment for its own if the other rank
// has the same process number (a crash in OpenMPI 4.1.4), and reads memory of the process that has the other rank's
// number here. Ranks decide alone: OpenMPI takes vader for pairs that both have it. Changes the environment.
void leave_out_vader_in_foreign_namespaces() {
  if (!find_launcher().is_outside) return;
  const std::string chosen = environment_variable("OMPI_MCA_btl");
  if (!chosen.empty() && !chosen.starts_with('^')) return;  // the user's own list
  const std::string others = chosen.empty() ? "" : "," + chosen.substr(1);
  setenv("OMPI_MCA_btl", ("^vader" + others).c_str(), 1);  // NOLINT(concurrency-mt-unsafe): no other thread asks
  const std::string local_rank = environment_variable("OMPI_COMM_WORLD_LOCAL_RANK");
  if (!local_rank.empty() && local_rank != "0") return;
  log_warn(
      "mpirun is outside of this rank's PID namespace (a container for each rank?). OpenMPI's shared memory fails\n"
      "  there and is left out (btl ^vader): the ranks of this node use TCP, which is slower");
}

}  // namespace

std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

std::shared_ptr<MpiEnvironment> MpiEnvironment::acquire() {
  static std::weak_ptr<MpiEnvironment> current;
  if (auto environment = current.lock()) return environment;
  std::shared_ptr<MpiEnvironment> environment(new MpiEnvironment);
  current = environment;
  return environment;
}

MpiEnvironment::MpiEnvironment() {
  int finalized = 0, initialized = 0;
  MPI_Finalized(&finalized);
  if (finalized) throw CommError("[mpi] MPI has been finalized and cannot be started again in this process");
  MPI_Initialized(&initialized);
  if (initialized) throw CommError("[mpi] other code of this process has started MPI already");
  leave_out_vader_in_foreign_namespaces();
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS) throw CommError(fmt::format("[mpi] MPI_Init_thread failed: {}", mpi_error_text(code)));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    throw CommError("[mpi] this MPI cannot be used by a program with threads (MPI_THREAD_FUNNELED)");
  }
}

MpiEnvironment::~MpiEnvironment() {
  if (std::uncaught_exceptions() == 0 && abandoned_.empty()) MPI_Finalize();
}

}  // namespace mantissa
