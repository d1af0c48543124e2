// MpiEnvironment: MPI in this process, from its start to its end.
#pragma once

#include "core/tensor/tensor.h"

namespace mantissa {

std::string mpi_error_text(int code);  // MPI's text for an error code

// MPI_Init and MPI_Finalize as an object.
class MpiEnvironment {
 public:
  // The environment of the process: the first owner starts MPI and the last one ends it. CommError if MPI has ended.
  static std::shared_ptr<MpiEnvironment> acquire();
  // Finalizes MPI, which waits for all ranks. Not during an exception or after messages were abandoned: the other ranks
  // would wait forever. When a process ends without finalizing MPI, mpirun ends the job with its exit code.
  ~MpiEnvironment();
  MpiEnvironment& operator=(MpiEnvironment&&) = delete;

  // Keeps the buffers of abandoned messages, because MPI may still write into them.
  void abandon(const std::vector<Tensor>& buffers) {
    abandoned_.insert(abandoned_.end(), buffers.begin(), buffers.end());
  }

 private:
  MpiEnvironment();

  std::vector<Tensor> abandoned_;
};

}  // namespace mantissa
