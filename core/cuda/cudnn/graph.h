// A graph of operations for cuDNN, built from the front to the back: every operation gives the tensor that it makes.
#pragma once

#include <array>
#include <deque>
#include <optional>

#include "core/cuda/cudnn/descriptor.h"

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

// A tensor that does not exist in memory, unless it gets an identifier of `memory`.
struct TensorSpec {
  cudnnDataType_t dtype = CUDNN_DATA_FLOAT;
  TensorLayout layout{};
  std::optional<int64_t> memory{};
};

class CudnnGraph {
 public:
  explicit CudnnGraph(const Cudnn& library) : library_(&library) {}

  // Identifiers, below 1000, stand for memory in CudnnPlan::run().
  GraphTensor input(int64_t identifier, cudnnDataType_t dtype, const TensorLayout& layout);
  // An fp32 number that is given as an address on the host.
  GraphTensor scalar(int64_t identifier);

  GraphTensor matmul(const GraphTensor& a, const GraphTensor& b, const TensorSpec& result);
  GraphTensor unary(cudnnPointwiseMode_t mode, const GraphTensor& x, const TensorSpec& result);
  GraphTensor binary(cudnnPointwiseMode_t mode, const GraphTensor& x, const GraphTensor& b, const TensorSpec& result);
  // x where row >= column (the last two dimensions), `otherwise` elsewhere.
  GraphTensor keep_lower_triangle(const GraphTensor& x, const GraphTensor& otherwise);
  // Over the dimensions in which the result has extent 1; over groups of heads where it has fewer.
  GraphTensor reduce(cudnnReduceTensorOp_t op, const GraphTensor& x, const TensorSpec& result);
  // The last two dimensions exchanged.
  GraphTensor transpose(const GraphTensor& x, cudnnDataType_t dtype);

  // The finished graph of all operations, on the device of `handle`, or null: of the device properties that its plans
  // are made for.
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
  std::deque<CudnnDescriptor> tensors_;  // whose addresses stay
  std::vector<CudnnDescriptor> operations_;
  std::vector<CudnnDescriptor> details_;  // what the operations refer to
  int64_t next_virtual_ = 1000;
};

}  // namespace mantissa::cuda
