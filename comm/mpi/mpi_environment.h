// MpiEnvironment: MPI_Init and MPI_Finalize as an object, and error codes as exceptions.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace mantissa {

class MpiEnvironment {
 public:
  // The environment of the process; MPI starts with the first owner and ends with the last. CommError if it has ended.
  static std::shared_ptr<MpiEnvironment> acquire();
  // Finalises MPI, which waits for all ranks. Not if an exception is on its way or messages were abandoned, because the
  // other ranks would then wait for ever: mpirun ends the job, with this process's exit code, when a process ends that
  // has not finalised MPI.
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  // Keeps the buffers of messages that were given up, because MPI may still write into them.
  void abandon(std::vector<Tensor> buffers);

 private:
  MpiEnvironment();
  std::vector<Tensor> abandoned_;
};

// What to name when a call fails.
struct MpiContext {
  int rank = 0;
  int size = 1;
  MPI_Comm communicator = MPI_COMM_NULL;
};

// CommError naming the collective, rank, size and bytes unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* collective, size_t bytes, const MpiContext& context);

}  // namespace mantissa
