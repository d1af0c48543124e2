// A cuBLASLt for tests without a GPU: the real library's descriptors, read back through the real library, and scalar
// column-major products of them on the emulated device. Whatever is wrong in a descriptor gives a wrong product here.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/cuda/cublaslt/gemm_library.h"

namespace mantissa::cuda::fake_cublaslt {

// What the library does, and what it was asked for. Reset by library().
struct State {
  // Algorithms number 0, 1, ... that the heuristic proposes, with the milliseconds that each takes on the device.
  std::vector<int> duration_ms{0};
  double scatter = 0.0;             // by this part more in every second product
  uint32_t required_alignment = 1;  // of addresses and strides; nothing is proposed for others
  cublasStatus_t heuristic_status = CUBLAS_STATUS_SUCCESS;
  bool refuses_gelu = false;   // nothing is proposed for epilogues with it
  std::vector<int> refused{};  // algorithms that do not pass the check, or do not run
  std::function<void()> before_product{};
  int heuristic_calls = 0, products = 0;
  std::vector<int> ran{};  // the algorithm of each product
  int last_algorithm() const { return ran.back(); }
  std::vector<cublasLtEpilogue_t> epilogues{};  // likewise
  std::vector<uint32_t> alignments{};           // that the heuristic was told of the library's A, B, C and D
  uint32_t reduction_schemes = 0;
  uint64_t workspace_bytes = 0;
  cublasComputeType_t compute_type = CUBLAS_COMPUTE_16F;
  bool aligned_bias = true;                                         // of all products
  bool fast_accumulation = true;                                    // of the last product of codes
  std::vector<std::pair<cudaDataType, cudaDataType>> code_types{};  // of each such product's A and B
  std::vector<std::pair<cublasLtMatmulMatrixScale_t, cublasLtMatmulMatrixScale_t>> scale_modes{};  // likewise
};
State& state();

CublasLt library();

}  // namespace mantissa::cuda::fake_cublaslt
