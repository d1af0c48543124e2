// cuDNN's backend interface, loaded when it is first needed: the program starts and trains without it.
#pragma once

#include <cudnn_graph.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cuda/runtime/runtime.h"
#include "core/cuda/shared_library.h"

namespace mantissa::cuda {

// The library's functions that are used, and their names in the table.
#define MANTISSA_CUDNN_FUNCTIONS(F)                    \
  F(cudnnGetVersion, version)                          \
  F(cudnnGetErrorString, status_name)                  \
  F(cudnnGetLastErrorString, last_error)               \
  F(cudnnCreate, create)                               \
  F(cudnnDestroy, destroy)                             \
  F(cudnnSetStream, set_stream)                        \
  F(cudnnBackendCreateDescriptor, create_descriptor)   \
  F(cudnnBackendDestroyDescriptor, destroy_descriptor) \
  F(cudnnBackendSetAttribute, set_attribute)           \
  F(cudnnBackendGetAttribute, get_attribute)           \
  F(cudnnBackendFinalize, finalize)                    \
  F(cudnnBackendExecute, execute)

struct Cudnn {
  MANTISSA_CUDNN_FUNCTIONS(MANTISSA_DECLARE_FUNCTION)
};

// A cuDNN call failed.
class CudnnError : public CudaError {
 public:
  using CudaError::CudaError;
};

// The library of the process; stays loaded until the process ends. It must have the major version that this program was
// compiled for and be at least 9.16: attention in older releases has defects that need other graphs. Searches where the
// loader looks, then the lib64 and lib folders of $CUDNN_HOME, $CUDA_HOME, $CUDA_PATH and /usr/local/cuda. Throws
// ConfigError if it finds none.
const Cudnn& cudnn();

// The reason that cudnn() would throw; empty if it would not. Does not throw.
std::string cudnn_unusable_reason();

// Throws CudnnError with the call, the status and the library's own explanation unless the status is success.
void check_cudnn(const Cudnn& library, cudnnStatus_t status, const char* call);

// Owns one cuDNN backend descriptor.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const Cudnn& library, cudnnBackendDescriptorType_t type)
      : library_(&library), handle_(nullptr, library.destroy_descriptor) {
    cudnnBackendDescriptor_t made = nullptr;
    check_cudnn(library, library.create_descriptor(type, &made), "cudnnBackendCreateDescriptor");
    handle_.reset(made);
  }

  // Value must be the type that `type` stands for in cudnn_graph.h: the library cannot check it.
  template <typename Value>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<const Value> values) {
    check_cudnn(*library_, library_->set_attribute(handle(), name, type, std::ssize(values), values.data()),
                "cudnnBackendSetAttribute");
  }
  template <typename Value>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const Value& value) {
    set(name, type, std::span<const Value>(&value, 1));
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.handle());
  }

  void finalize() { check_cudnn(*library_, library_->finalize(handle()), "cudnnBackendFinalize"); }

  // Returns at most `limit` values.
  template <typename Value>
  std::vector<Value> get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t limit) const {
    std::vector<Value> values(static_cast<size_t>(limit));
    int64_t count = 0;
    check_cudnn(*library_, library_->get_attribute(handle(), name, type, limit, &count, values.data()),
                "cudnnBackendGetAttribute");
    values.resize(static_cast<size_t>(std::min(count, limit)));
    return values;
  }
  // Fills existing descriptors, as the library requires, and returns how many it filled.
  int64_t get_into(cudnnBackendAttributeName_t name, std::span<CudnnDescriptor> descriptors) const {
    std::vector<cudnnBackendDescriptor_t> handles;
    for (const CudnnDescriptor& descriptor : descriptors) handles.push_back(descriptor.handle());
    int64_t count = 0;
    check_cudnn(*library_,
                library_->get_attribute(handle(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(handles), &count,
                                        handles.data()),
                "cudnnBackendGetAttribute");
    return std::min(count, static_cast<int64_t>(std::ssize(descriptors)));
  }

  cudnnBackendDescriptor_t handle() const { return handle_.get(); }

 private:
  const Cudnn* library_;
  std::unique_ptr<void, decltype(&cudnnBackendDestroyDescriptor)> handle_;
};

}  // namespace mantissa::cuda
