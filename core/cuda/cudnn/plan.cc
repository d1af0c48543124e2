#include "core/cuda/cudnn/plan.h"

#include <fmt/core.h>

namespace mantissa::cuda {
namespace {

// The plan of the first configuration for which the library makes one.
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
