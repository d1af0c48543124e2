// cuDNN's backend interface, loaded when it is first needed: the program starts and trains without it. An operation
// graph, built from front to back (every operation returns its result tensor), and the execution plan of a graph: the
// engine that runs it.
#pragma once

#include <cudnn_graph.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/cuda/runtime/runtime.h"
#include "core/cuda/shared_library.h"
#include "core/kernels/attention/device_cuda.h"

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

// ---- Graphs

// Four dimensions, in elements.
struct TensorLayout {
  std::array<int64_t, 4> dims{}, strides{};

  static TensorLayout contiguous(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
    return {{batch, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}};
  }
  TensorLayout transposed() const {
    return {{dims[0], dims[1], dims[3], dims[2]}, {strides[0], strides[1], strides[3], strides[2]}};
  }
};

// A tensor of a graph; lives as long as the graph.
struct GraphTensor {
  const CudnnDescriptor* descriptor = nullptr;
  TensorLayout layout{};
};

// A tensor of a graph. It is virtual (never in memory) unless `memory` gives it an identifier.
struct TensorSpec {
  cudnnDataType_t dtype = CUDNN_DATA_FLOAT;
  TensorLayout layout{};
  std::optional<int64_t> memory{};
};

class CudnnGraph {
 public:
  explicit CudnnGraph(const Cudnn& library) : library_(&library) {}

  // CudnnPlan::run() binds identifiers, which must be below 1000, to memory.
  GraphTensor input(int64_t identifier, cudnnDataType_t dtype, const TensorLayout& layout) {
    return tensor({dtype, layout, identifier});
  }
  // An fp32 number; CudnnPlan::run() takes its host address.
  GraphTensor scalar(int64_t identifier) {
    return tensor({CUDNN_DATA_FLOAT, TensorLayout::contiguous(1, 1, 1, 1), identifier}, true);
  }

  GraphTensor matmul(const GraphTensor& a, const GraphTensor& b, const TensorSpec& result);
  GraphTensor unary(cudnnPointwiseMode_t mode, const GraphTensor& x, const TensorSpec& result) {
    return pointwise({mode}, x, nullptr, nullptr, result);
  }
  GraphTensor binary(cudnnPointwiseMode_t mode, const GraphTensor& x, const GraphTensor& b, const TensorSpec& result) {
    return pointwise({mode}, x, &b, nullptr, result);
  }
  // x where row >= column (the last two dimensions), `otherwise` elsewhere.
  GraphTensor keep_lower_triangle(const GraphTensor& x, const GraphTensor& otherwise);
  // Reduces over the dimensions in which the result has extent 1, and over groups of heads if the result has fewer
  // heads.
  GraphTensor reduce(cudnnReduceTensorOp_t op, const GraphTensor& x, const TensorSpec& result);
  // Exchanges the last two dimensions.
  GraphTensor transpose(const GraphTensor& x, cudnnDataType_t dtype);

  // The finalized graph of all operations, for the device of `handle`; with null, for the device properties of its
  // plans' target.
  CudnnDescriptor finish(cudnnHandle_t handle) const;

 private:
  struct Pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    std::optional<int64_t> axis{};
  };

  using Tensors = std::initializer_list<std::pair<cudnnBackendAttributeName_t, const GraphTensor*>>;  // null: none

  GraphTensor tensor(const TensorSpec& spec, bool by_value = false);
  // An operation on tensors, by the arithmetic that it takes as attribute `math_name`.
  void add(cudnnBackendDescriptorType_t type, Tensors tensors, cudnnBackendAttributeName_t math_name,
           CudnnDescriptor math);
  GraphTensor pointwise(const Pointwise& operation, const GraphTensor& x, const GraphTensor* b, const GraphTensor* t,
                        const TensorSpec& result);

  const Cudnn* library_;
  std::deque<CudnnDescriptor> tensors_;  // a deque: addresses stay valid
  std::vector<CudnnDescriptor> operations_;
  std::vector<CudnnDescriptor> details_;  // descriptors that the operations refer to
  int64_t next_virtual_ = 1000;
};

// The device that plans are made for: a handle on it, or a finalized descriptor of its properties, which needs no
// device.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  const CudnnDescriptor* properties = nullptr;
};

// The library's engine configurations for a graph, the best guess first. Throws CudnnError if it has none.
std::vector<CudnnDescriptor> engine_configurations(const Cudnn& library, const CudnnTarget& target,
                                                   const CudnnDescriptor& graph);

class CudnnPlan {
 public:
  // Takes the first of engine_configurations() for which the library makes a plan. Builds or loads kernels, which can
  // take seconds. Throws CudnnError if there is none.
  CudnnPlan(const Cudnn& library, const CudnnTarget& target, CudnnGraph graph);

  int64_t workspace_bytes() const { return workspace_bytes_; }

  // Addresses of the graph's tensors: on the device, but on the host for numbers.
  struct Bindings {
    std::vector<int64_t> identifiers;
    std::vector<void*> addresses;

    void bind(int64_t identifier, void* address) {
      identifiers.push_back(identifier);
      addresses.push_back(address);
    }
  };
  // Queues the work on the stream of `handle`. `workspace` must have workspace_bytes().
  void run(cudnnHandle_t handle, const Bindings& bindings, void* workspace) const;

 private:
  const Cudnn& library_;
  CudnnGraph operations_;  // members may refer to those declared before them
  CudnnDescriptor graph_;
  std::vector<CudnnDescriptor> configurations_;
  CudnnDescriptor plan_;
  int64_t workspace_bytes_ = 0;
};

// ---- Scaled dot-product attention as graphs for cuDNN's fused engines, which recognise them by their form.
//
// Queries, keys and values are views of one packed tensor (B * T, (H + 2 * KV) * D), distinguished by their addresses
// and the strides of its rows; so are their gradients. Scores, softmax and sums are fp32. Probabilities and the
// gradients of scores are rounded to the operands' dtype before they are multiplied. With fewer key heads than query
// heads, each query head's gradients of keys and values are rounded to that dtype before they are added.
//
// Source of the form: NVIDIA's cudnn-frontend 1.23, include/cudnn_frontend/node/scaled_dot_product_flash_attention.h.

// Identifiers of the graph's tensors that lie in memory.
enum AttentionTensor : int64_t {
  kQueries = 1,
  kKeys,
  kValues,
  kOut,
  kLse,  // (B, H, T), fp32: log(sum exp(scale * q k^T)), natural: AttentionForwardArgs::lse
  kDOut,
  kDQueries,
  kDKeys,
  kDValues,
  kDelta,        // (B, H, T), fp32: rowsum(out * d_out), made by the backward pass
  kDQueriesSum,  // (B, H, T, D), fp32, must be 0 before: sum of d_queries; not in the reproducible pass
  kScale,        // number
  kMaskedScore,  // number: -Inf
  kOne,          // number: 1, takes the place of dropout in the graph
};

CudnnGraph attention_forward_graph(const Cudnn& library, const AttentionKey& key);

// kBackward adds up d_queries in fp32, in an order that varies from run to run. In kReproducibleBackward, the engine
// keeps the gradients of all scores instead, B * H * T * T elements of the operands' dtype, and multiplies them in one
// order.
CudnnGraph attention_backward_graph(const Cudnn& library, const AttentionKey& key);

}  // namespace mantissa::cuda
