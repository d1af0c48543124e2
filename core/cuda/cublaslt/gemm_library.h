// cuBLASLt, opened when it is first needed: the program starts on machines without any CUDA library.
#pragma once

#include <cublasLt.h>

#include <string>

namespace mantissa::cuda {

// Its functions, as cublasLt.h declares them.
struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) algorithms = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
};

// The library of the process; stays open to its end. Only the major version that this program was compiled for is
// taken: another one's enumerations and structs may differ. Looked for where the loader looks, then in the lib64 and
// lib folders of $CUDA_HOME, $CUDA_PATH and /usr/local/cuda. ConfigError if there is none.
const CublasLt& cublaslt();

// Why there is none; empty if there is one. Does not throw.
std::string cublaslt_unusable_reason();

}  // namespace mantissa::cuda
