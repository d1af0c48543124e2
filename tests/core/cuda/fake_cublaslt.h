// A stand-in for cuBLASLt without a GPU. It reads the descriptors back through the real library and computes scalar
// column-major products on the emulated device. Any error in a descriptor gives a wrong product.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/kernels/gemm/choice_cublaslt.h"

namespace mantissa::cuda::fake_cublaslt {

// The library's behaviour, and the calls that it received. library() resets it.
struct State {
  // The heuristic proposes algorithms 0, 1, ..., each with the milliseconds that it takes on the device.
  std::vector<int> duration_ms{0};
  double scatter = 0.0;             // every second product takes this share more time
  uint32_t required_alignment = 1;  // of addresses and strides; proposes nothing for others
  cublasStatus_t heuristic_status = CUBLAS_STATUS_SUCCESS;
  bool refuses_gelu = false;   // proposes nothing for epilogues with gelu
  std::vector<int> refused{};  // algorithms that fail the check or do not run
  std::function<void()> before_product{};
  int heuristic_calls = 0, products = 0;
  std::vector<int> ran{};  // the algorithm of each product
  int last_algorithm() const { return ran.back(); }
  std::vector<cublasLtEpilogue_t> epilogues{};  // the epilogue of each product
  std::vector<uint32_t> alignments{};           // as passed to the heuristic, for the library's A, B, C and D
  uint32_t reduction_schemes = 0;
  uint64_t workspace_bytes = 0;
  cublasComputeType_t compute_type = CUBLAS_COMPUTE_16F;
  bool aligned_bias = true;                                         // of all products
  bool fast_accumulation = true;                                    // of the last product of codes
  std::vector<std::pair<cudaDataType, cudaDataType>> code_types{};  // A and B of each product of codes
  std::vector<std::pair<cublasLtMatmulMatrixScale_t, cublasLtMatmulMatrixScale_t>> scale_modes{};  // of each of them
};
State& state();

CublasLt library();

}  // namespace mantissa::cuda::fake_cublaslt
