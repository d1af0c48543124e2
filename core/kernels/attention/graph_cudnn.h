// A cuDNN operation graph, built from front to back (every operation returns its result tensor), and the execution plan
// of a graph: the engine that runs it.
#pragma once

#include <array>
#include <deque>
#include <optional>

#include "core/kernels/attention/library_cudnn.h"

namespace mantissa::cuda {

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
  GraphTensor input(int64_t identifier, cudnnDataType_t dtype, const TensorLayout& layout);
  // An fp32 number; CudnnPlan::run() takes its host address.
  GraphTensor scalar(int64_t identifier);

  GraphTensor matmul(const GraphTensor& a, const GraphTensor& b, const TensorSpec& result);
  GraphTensor unary(cudnnPointwiseMode_t mode, const GraphTensor& x, const TensorSpec& result);
  GraphTensor binary(cudnnPointwiseMode_t mode, const GraphTensor& x, const GraphTensor& b, const TensorSpec& result);
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

  GraphTensor tensor(const TensorSpec& spec, bool by_value = false);
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

}  // namespace mantissa::cuda
