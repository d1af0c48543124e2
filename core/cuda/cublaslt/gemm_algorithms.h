// Which of cuBLASLt's kernels a product runs on.
#pragma once

#include <optional>
#include <vector>

#include "core/cuda/cublaslt/gemm_descriptor.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

// One product on one stream: what the functions below work on.
struct GemmLaunch {
  const CublasLt& library;
  cublasLtHandle_t handle = nullptr;
  const GemmDescriptors& descriptors;  // with the operands' addresses set
  const GemmKey& key;
  GemmOperands operands;
  CudaStream& stream;

  // Queues the product.
  cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm) const;
};

// What the library's heuristic proposes, the best guess first; empty if it has nothing for the product.
//
// Sums that are split over K are combined in fp32 only (reduction scheme COMPUTE_TYPE): partial sums in the output's
// type would be rounded to it more than once.
std::vector<cublasLtMatmulAlgo_t> proposed_algorithms(const GemmLaunch& launch);

// Whether the library accepts an algorithm that comes from the disk.
bool is_usable(const GemmLaunch& launch, const cublasLtMatmulAlgo_t& algorithm);

struct TimedChoice {
  size_t index = 0;
  bool is_steady = false;  // its times are, see below
};

// Which of the algorithms takes least time on the operands as they are. With kWrite they write c (and aux), which the
// product that follows overwrites; with kAccumulate they add to memory of their own. Waits for all streams of the
// device, whose work would slow some of the algorithms. Nothing where there is no device memory for that.
std::optional<TimedChoice> fastest_algorithm(const GemmLaunch& launch,
                                             const std::vector<cublasLtMatmulAlgo_t>& algorithms);

// The first of these times that no other beats clearly (by more than 2 %, about what such measurements scatter): a
// later guess must be better than an earlier one.
size_t clearly_fastest(const std::vector<float>& milliseconds);

// Whether repeated times of one algorithm are at most kSteadySpread of the shortest apart: what is measured while
// others use the GPU says little.
constexpr float kSteadySpread = 0.1f;
bool is_steady(const std::vector<float>& milliseconds);

}  // namespace mantissa::cuda
