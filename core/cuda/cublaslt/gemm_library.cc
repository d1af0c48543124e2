#include "core/cuda/cublaslt/gemm_library.h"

#include <fmt/core.h>

#include "core/base/error.h"
#include "core/cuda/shared_library.h"

namespace mantissa::cuda {
namespace {

CublasLt load() {
  const SharedLibrary library(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), {"CUDA_HOME", "CUDA_PATH"},
                              fmt::format("install the CUDA {} libraries or put them on LD_LIBRARY_PATH (tools/bundle "
                                          "--with-cuda)",
                                          CUBLAS_VER_MAJOR));
  CublasLt table;
  library.resolve("cublasLtCreate", table.create);
  library.resolve("cublasLtDestroy", table.destroy);
  library.resolve("cublasLtGetVersion", table.version);
  library.resolve("cublasLtGetStatusName", table.status_name);
  library.resolve("cublasLtMatmul", table.matmul);
  library.resolve("cublasLtMatmulAlgoGetHeuristic", table.algorithms);
  library.resolve("cublasLtMatmulAlgoCheck", table.check_algorithm);
  library.resolve("cublasLtMatmulDescCreate", table.create_operation);
  library.resolve("cublasLtMatmulDescDestroy", table.destroy_operation);
  library.resolve("cublasLtMatmulDescSetAttribute", table.set_operation);
  library.resolve("cublasLtMatrixLayoutCreate", table.create_layout);
  library.resolve("cublasLtMatrixLayoutDestroy", table.destroy_layout);
  library.resolve("cublasLtMatmulPreferenceCreate", table.create_preference);
  library.resolve("cublasLtMatmulPreferenceDestroy", table.destroy_preference);
  library.resolve("cublasLtMatmulPreferenceSetAttribute", table.set_preference);
  if (const size_t version = table.version(); version / 10000 != CUBLAS_VER_MAJOR) {
    throw ConfigError(fmt::format(
        "{} says that it is version {}, which is not of the major version {} that this program was built for",
        library.name(), version, CUBLAS_VER_MAJOR));
  }
  return table;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt table = load();
  return table;
}

std::string cublaslt_unusable_reason() {
  try {
    cublaslt();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace mantissa::cuda
