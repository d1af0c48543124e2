#include "core/cuda/gemm_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "core/base/error.h"

namespace mantissa::cuda {
namespace {

std::string library_name() { return fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR); }

std::string last_loader_error() {
  const char* error = dlerror();
  return error != nullptr ? error : "no reason given";
}

std::vector<std::string> toolkit_paths() {
  std::vector<std::string> roots;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* root = std::getenv(variable);
    if (root != nullptr && *root != '\0') roots.push_back(root);
  }
  roots.push_back("/usr/local/cuda");
  std::vector<std::string> paths;
  for (const std::string& root : roots) {
    for (const char* folder : {"lib64", "lib"}) paths.push_back(fmt::format("{}/{}/{}", root, folder, library_name()));
  }
  return paths;
}

void* open_library() {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
  if (void* found = dlopen(library_name().c_str(), kMode)) return found;
  std::string reasons = last_loader_error();
  for (const std::string& path : toolkit_paths()) {
    if (access(path.c_str(), F_OK) != 0) continue;
    if (void* found = dlopen(path.c_str(), kMode)) return found;
    reasons += fmt::format("; {}", last_loader_error());
  }
  throw ConfigError(
      fmt::format("{} cannot be loaded: {}; install the CUDA {} libraries or put them on LD_LIBRARY_PATH (tools/bundle "
                  "--with-cuda)",
                  library_name(), reasons, CUBLAS_VER_MAJOR));
}

template <typename Function>
void resolve(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function == nullptr) {
    throw ConfigError(
        fmt::format("{} has no {}: {}; it is damaged or not NVIDIA's", library_name(), symbol, last_loader_error()));
  }
}

CublasLt load() {
  void* const library = open_library();
  CublasLt table;
  resolve(library, "cublasLtCreate", table.create);
  resolve(library, "cublasLtDestroy", table.destroy);
  resolve(library, "cublasLtGetVersion", table.version);
  resolve(library, "cublasLtGetStatusName", table.status_name);
  resolve(library, "cublasLtMatmul", table.matmul);
  resolve(library, "cublasLtMatmulAlgoGetHeuristic", table.algorithms);
  resolve(library, "cublasLtMatmulAlgoCheck", table.check_algorithm);
  resolve(library, "cublasLtMatmulDescCreate", table.create_operation);
  resolve(library, "cublasLtMatmulDescDestroy", table.destroy_operation);
  resolve(library, "cublasLtMatmulDescSetAttribute", table.set_operation);
  resolve(library, "cublasLtMatrixLayoutCreate", table.create_layout);
  resolve(library, "cublasLtMatrixLayoutDestroy", table.destroy_layout);
  resolve(library, "cublasLtMatmulPreferenceCreate", table.create_preference);
  resolve(library, "cublasLtMatmulPreferenceDestroy", table.destroy_preference);
  resolve(library, "cublasLtMatmulPreferenceSetAttribute", table.set_preference);
  if (const size_t version = table.version(); version / 10000 != CUBLAS_VER_MAJOR) {
    throw ConfigError(
        fmt::format("{} says that it is version {}, expected {}xxxx", library_name(), version, CUBLAS_VER_MAJOR));
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
