// cuDNN's backend interface, loaded when it is first needed: the program starts and trains without it.
#pragma once

#include <cudnn_graph.h>

#include <string>

#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {

// The library's functions, as cudnn_graph.h declares them.
struct Cudnn {
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) status_name = nullptr;
  decltype(&cudnnGetLastErrorString) last_error = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

// A cuDNN call was refused or failed.
class CudnnError : public CudaError {
 public:
  using CudaError::CudaError;
};

// The library of the process; stays loaded until the process ends. It must have the major version that this program was
// compiled for and be at least 9.16: attention in older releases has defects that need other graphs. Searches where the
// loader looks, then the lib64 and lib folders of $CUDNN_HOME, $CUDA_HOME, $CUDA_PATH and /usr/local/cuda. Throws
// ConfigError if it finds none.
const Cudnn& cudnn();

// Why cudnn() would throw; empty if it would not. Does not throw.
std::string cudnn_unusable_reason();

// Throws CudnnError with the call, the status and the library's own explanation unless the status is success.
void check_cudnn(const Cudnn& library, cudnnStatus_t status, const char* call);

}  // namespace mantissa::cuda
