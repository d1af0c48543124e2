#include "core/kernels/attention/graph_cudnn.h"

#include <fmt/core.h>

namespace mantissa::cuda {
namespace {

constexpr size_t kOldest = 91600;

Cudnn load() {
  const SharedLibrary library(fmt::format("libcudnn.so.{}", CUDNN_MAJOR), {"CUDNN_HOME", "CUDA_HOME", "CUDA_PATH"},
                              fmt::format("install cuDNN {} or put it on LD_LIBRARY_PATH", CUDNN_MAJOR));
  Cudnn table;
  MANTISSA_CUDNN_FUNCTIONS(MANTISSA_FIND_FUNCTION)
  const size_t version = table.version();
  if (version / 10000 != CUDNN_MAJOR || version < kOldest) {
    throw ConfigError(fmt::format("{} says that it is version {}, expected {}.{} or newer, below {}", library.name(),
                                  version, kOldest / 10000, kOldest / 100 % 100, CUDNN_MAJOR + 1));
  }
  return table;
}

// The plan of the first configuration that the library accepts.
CudnnDescriptor first_plan(const Cudnn& library, const CudnnTarget& target,
                           const std::vector<CudnnDescriptor>& configurations) {
  std::string reasons;
  for (const CudnnDescriptor& configuration : configurations) {
    try {
      CudnnDescriptor plan(library, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      if (target.handle != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      plan.finalize();
      return plan;
    } catch (const CudnnError& error) {
      reasons += fmt::format("; {}", error.what());
    }
  }
  throw CudnnError(fmt::format("[cudnn] none of {} engines has a plan{}", configurations.size(), reasons));
}

}  // namespace

const Cudnn& cudnn() {
  static const Cudnn kTable = load();
  return kTable;
}

void check_cudnn(const Cudnn& library, cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char explanation[512] = {};
  library.last_error(explanation, sizeof(explanation));
  throw CudnnError(fmt::format("[cudnn] {} failed with {} ({})", call, library.status_name(status), explanation));
}

// ---- Graphs

GraphTensor CudnnGraph::tensor(const TensorSpec& spec, bool by_value) {
  CudnnDescriptor descriptor(*library_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, spec.dtype);
  descriptor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const int64_t>(spec.layout.dims));
  descriptor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const int64_t>(spec.layout.strides));
  constexpr int64_t kAlignmentBytes = 16;
  descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignmentBytes);
  const int64_t identifier = spec.memory ? *spec.memory : next_virtual_++;
  descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, identifier);
  descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, !spec.memory.has_value());
  descriptor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  descriptor.finalize();
  return {&tensors_.emplace_back(std::move(descriptor)), spec.layout};
}

void CudnnGraph::add(cudnnBackendDescriptorType_t type, Tensors tensors, cudnnBackendAttributeName_t math_name,
                     CudnnDescriptor math) {
  math.finalize();
  CudnnDescriptor operation(*library_, type);
  for (const auto& [name, tensor] : tensors) {
    if (tensor != nullptr) operation.set(name, *tensor->descriptor);
  }
  operation.set(math_name, math);
  operation.finalize();
  details_.push_back(std::move(math));
  operations_.push_back(std::move(operation));
}

GraphTensor CudnnGraph::matmul(const GraphTensor& a, const GraphTensor& b, const TensorSpec& result) {
  CudnnDescriptor math(*library_, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  math.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  const GraphTensor c = tensor(result);
  add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
      {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, &a},
       {CUDNN_ATTR_OPERATION_MATMUL_BDESC, &b},
       {CUDNN_ATTR_OPERATION_MATMUL_CDESC, &c}},
      CUDNN_ATTR_OPERATION_MATMUL_DESC, std::move(math));
  return c;
}

GraphTensor CudnnGraph::pointwise(const Pointwise& what, const GraphTensor& x, const GraphTensor* b,
                                  const GraphTensor* t, const TensorSpec& result) {
  CudnnDescriptor math(*library_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  math.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, what.mode);
  math.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, what.math);
  if (what.axis) math.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, *what.axis);
  const GraphTensor y = tensor(result);
  add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
      {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &x},
       {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
       {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t},
       {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &y}},
      CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, std::move(math));
  return y;
}

GraphTensor CudnnGraph::keep_lower_triangle(const GraphTensor& x, const GraphTensor& otherwise) {
  const auto index = [&](int64_t axis) {
    return pointwise({.mode = CUDNN_POINTWISE_GEN_INDEX, .axis = axis}, x, nullptr, nullptr,
                     {CUDNN_DATA_INT32, x.layout});
  };
  const GraphTensor row = index(2), column = index(3);
  const GraphTensor keep = pointwise({.mode = CUDNN_POINTWISE_CMP_GE, .math = CUDNN_DATA_BOOLEAN}, row, &column,
                                     nullptr, {CUDNN_DATA_BOOLEAN, x.layout});
  return pointwise({CUDNN_POINTWISE_BINARY_SELECT}, x, &otherwise, &keep, {CUDNN_DATA_FLOAT, x.layout});
}

GraphTensor CudnnGraph::reduce(cudnnReduceTensorOp_t op, const GraphTensor& x, const TensorSpec& result) {
  CudnnDescriptor math(*library_, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  math.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op);
  math.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  const GraphTensor y = tensor(result);
  add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
      {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &x}, {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &y}},
      CUDNN_ATTR_OPERATION_REDUCTION_DESC, std::move(math));
  return y;
}

GraphTensor CudnnGraph::transpose(const GraphTensor& x, cudnnDataType_t dtype) {
  const GraphTensor y = tensor({dtype, x.layout.transposed()});
  CudnnDescriptor operation(*library_, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y.descriptor);
  operation.finalize();
  operations_.push_back(std::move(operation));
  return y;
}

CudnnDescriptor CudnnGraph::finish(cudnnHandle_t handle) const {
  CudnnDescriptor graph(*library_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : operations_) operations.push_back(operation.handle());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            std::span<const cudnnBackendDescriptor_t>(operations));
  if (handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph.finalize();
  return graph;
}

std::vector<CudnnDescriptor> engine_configurations(const Cudnn& library, const CudnnTarget& target,
                                                   const CudnnDescriptor& graph) {
  constexpr int64_t kMost = 16;
  CudnnDescriptor heuristic(library, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (target.properties != nullptr) heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
  heuristic.finalize();
  std::vector<CudnnDescriptor> configurations;
  for (int64_t i = 0; i < kMost; ++i) configurations.emplace_back(library, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  const int64_t found = heuristic.get_into(CUDNN_ATTR_ENGINEHEUR_RESULTS, configurations);
  configurations.erase(configurations.begin() + found, configurations.end());
  if (configurations.empty()) throw CudnnError("[cudnn] no engine takes the graph");
  return configurations;
}

CudnnPlan::CudnnPlan(const Cudnn& library, const CudnnTarget& target, CudnnGraph graph)
    : library_(library),
      operations_(std::move(graph)),
      graph_(operations_.finish(target.handle)),
      configurations_(engine_configurations(library, target, graph_)),
      plan_(first_plan(library, target, configurations_)),
      workspace_bytes_(plan_.get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1).front()) {}

void CudnnPlan::run(cudnnHandle_t handle, const Bindings& bindings, void* workspace) const {
  CudnnDescriptor pack(library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::span<const int64_t>(bindings.identifiers));
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, std::span<void* const>(bindings.addresses));
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  check_cudnn(library_, library_.execute(handle, plan_.handle(), pack.handle()), "cudnnBackendExecute");
}

}  // namespace mantissa::cuda
