#include "comm/mpi/mpi_environment.h"

#include <exception>

#include "core/base/check.h"

namespace mantissa {
namespace {

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

}  // namespace

std::shared_ptr<MpiEnvironment> MpiEnvironment::acquire() {
  static std::weak_ptr<MpiEnvironment> current;
  if (auto environment = current.lock()) return environment;
  const std::shared_ptr<MpiEnvironment> environment(new MpiEnvironment);
  current = environment;
  return environment;
}

MpiEnvironment::MpiEnvironment() {
  int finalized = 0, initialized = 0;
  MPI_Finalized(&finalized);
  if (finalized) throw CommError("[mpi] MPI has been finalised and cannot be started again in this process");
  MPI_Initialized(&initialized);
  if (initialized) throw CommError("[mpi] MPI has been started by somebody else in this process");
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS) throw CommError(fmt::format("[mpi] MPI_Init_thread failed: {}", error_text(code)));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    throw CommError("[mpi] this MPI cannot be used by a program with threads (MPI_THREAD_FUNNELED)");
  }
}

MpiEnvironment::~MpiEnvironment() {
  if (std::uncaught_exceptions() == 0 && abandoned_.empty()) MPI_Finalize();
}

void MpiEnvironment::abandon(std::vector<Tensor> buffers) {
  for (Tensor& buffer : buffers) abandoned_.push_back(std::move(buffer));
}

void check_mpi(int code, const char* collective, size_t bytes, const MpiContext& context) {
  if (code == MPI_SUCCESS) return;
  throw CommError(
      fmt::format("[{}] rank {} of {}, {} bytes: {}", collective, context.rank, context.size, bytes, error_text(code)));
}

}  // namespace mantissa
