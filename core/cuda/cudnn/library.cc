#include "core/cuda/cudnn/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace mantissa::cuda {
namespace {

constexpr size_t kOldest = 91600;

std::string library_name() { return fmt::format("libcudnn.so.{}", CUDNN_MAJOR); }

std::string last_loader_error() {
  const char* error = dlerror();
  return error != nullptr ? error : "no reason given";
}

std::vector<std::string> likely_paths() {
  std::vector<std::string> roots;
  for (const char* variable : {"CUDNN_HOME", "CUDA_HOME", "CUDA_PATH"}) {
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
  for (const std::string& path : likely_paths()) {
    if (access(path.c_str(), F_OK) != 0) continue;
    if (void* found = dlopen(path.c_str(), kMode)) return found;
    reasons += fmt::format("; {}", last_loader_error());
  }
  throw ConfigError(fmt::format("{} cannot be loaded: {}; install cuDNN {} or put it on LD_LIBRARY_PATH",
                                library_name(), reasons, CUDNN_MAJOR));
}

template <typename Function>
void resolve(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function == nullptr) {
    throw ConfigError(
        fmt::format("{} has no {}: {}; it is damaged or not NVIDIA's", library_name(), symbol, last_loader_error()));
  }
}

Cudnn load() {
  void* const library = open_library();
  Cudnn table;
  resolve(library, "cudnnGetVersion", table.version);
  resolve(library, "cudnnGetErrorString", table.status_name);
  resolve(library, "cudnnGetLastErrorString", table.last_error);
  resolve(library, "cudnnCreate", table.create);
  resolve(library, "cudnnDestroy", table.destroy);
  resolve(library, "cudnnSetStream", table.set_stream);
  resolve(library, "cudnnBackendCreateDescriptor", table.create_descriptor);
  resolve(library, "cudnnBackendDestroyDescriptor", table.destroy_descriptor);
  resolve(library, "cudnnBackendSetAttribute", table.set_attribute);
  resolve(library, "cudnnBackendGetAttribute", table.get_attribute);
  resolve(library, "cudnnBackendFinalize", table.finalize);
  resolve(library, "cudnnBackendExecute", table.execute);
  const size_t version = table.version();
  if (version / 10000 != CUDNN_MAJOR || version < kOldest) {
    throw ConfigError(fmt::format("{} says that it is version {}, expected {}.{} or newer, below {}", library_name(),
                                  version, kOldest / 10000, kOldest / 100 % 100, CUDNN_MAJOR + 1));
  }
  return table;
}

}  // namespace

const Cudnn& cudnn() {
  static const Cudnn table = load();
  return table;
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
