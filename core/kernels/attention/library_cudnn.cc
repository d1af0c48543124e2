#include "core/kernels/attention/library_cudnn.h"

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

}  // namespace

const Cudnn& cudnn() {
  static const Cudnn kTable = load();
  return kTable;
}

std::string cudnn_unusable_reason() {
  try {
    cudnn();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void check_cudnn(const Cudnn& library, cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char explanation[512] = {};
  library.last_error(explanation, sizeof(explanation));
  throw CudnnError(fmt::format("[cudnn] {} failed with {} ({})", call, library.status_name(status), explanation));
}

}  // namespace mantissa::cuda
