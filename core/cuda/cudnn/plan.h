// A graph with the kernel that runs it.
#pragma once

#include "core/cuda/cudnn/graph.h"

namespace mantissa::cuda {

// The device that plans are made for: a handle on it, or else a finished descriptor of its properties, for which no
// device is needed.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  const CudnnDescriptor* properties = nullptr;
};

// The library's configurations for a graph, the best guess first. CudnnError if it has none.
std::vector<CudnnDescriptor> engine_configurations(const Cudnn& library, const CudnnTarget& target,
                                                   const CudnnDescriptor& graph);

class CudnnPlan {
 public:
  // The first of engine_configurations() of which the library makes a plan. Builds or loads kernels: takes up to
  // seconds. CudnnError if there is none.
  CudnnPlan(const Cudnn& library, const CudnnTarget& target, CudnnGraph graph);

  int64_t workspace_bytes() const { return workspace_bytes_; }

  // Memory of a graph's tensors: addresses on the device, and on the host for numbers.
  struct Bindings {
    std::vector<int64_t> identifiers;
    std::vector<void*> addresses;

    void bind(int64_t identifier, void* address) {
      identifiers.push_back(identifier);
      addresses.push_back(address);
    }
  };
  // Queues the work on the stream of `handle`. `workspace` has workspace_bytes().
  void run(cudnnHandle_t handle, const Bindings& bindings, void* workspace) const;

 private:
  const Cudnn& library_;
  CudnnGraph operations_;  // each of what follows may refer to what stands before it
  CudnnDescriptor graph_;
  std::vector<CudnnDescriptor> configurations_;
  CudnnDescriptor plan_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace mantissa::cuda
