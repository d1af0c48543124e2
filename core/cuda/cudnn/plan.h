// An execution plan: a graph with the engine that runs it.
#pragma once

#include "core/cuda/cudnn/graph.h"

namespace mantissa::cuda {

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
