// cuDNN's backend interface, opened when it is first needed: the program starts and trains without it.
#pragma once

#include <cudnn_graph.h>

#include <string>

#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {

// Its functions, as cudnn_graph.h declares them.
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

// What cuDNN refuses, or fails in.
class CudnnError : public CudaError {
 public:
  using CudaError::CudaError;
};

// The library of the process; stays open to its end. Only the major version that this program was compiled for is
// taken, and of it nothing older than 9.16: attention of releases before has defects that need other graphs. Looked for
// where the loader looks, then in the lib64 and lib folders of $CUDNN_HOME, $CUDA_HOME, $CUDA_PATH and /usr/local/cuda.
// ConfigError if there is none.
const Cudnn& cudnn();

// Why there is none; empty if there is one. Does not throw.
std::string cudnn_unusable_reason();

// CudnnError with the call, the status and the library's own explanation, unless the status is one of success.
void check_cudnn(const Cudnn& library, cudnnStatus_t status, const char* call);

}  // namespace mantissa::cuda
