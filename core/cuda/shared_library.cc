#include "core/cuda/shared_library.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "core/base/error.h"

namespace mantissa::cuda {
namespace {

std::string last_loader_error() {
  const char* error = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread, in glibc
  return error != nullptr ? error : "no reason given";
}

std::vector<std::string> likely_paths(const std::string& name, const std::vector<const char*>& variables) {
  std::vector<std::string> roots;
  for (const char* variable : variables) {
    const char* root = std::getenv(variable);
    if (root != nullptr && *root != '\0') roots.push_back(root);
  }
  roots.push_back("/usr/local/cuda");
  std::vector<std::string> paths;
  for (const std::string& root : roots) {
    for (const char* folder : {"lib64", "lib"}) paths.push_back(fmt::format("{}/{}/{}", root, folder, name));
  }
  return paths;
}

void* open(const std::string& name, const std::vector<const char*>& variables, const std::string& advice) {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
  if (void* found = dlopen(name.c_str(), kMode)) return found;
  std::string reasons = last_loader_error();
  for (const std::string& path : likely_paths(name, variables)) {
    if (access(path.c_str(), F_OK) != 0) continue;
    if (void* found = dlopen(path.c_str(), kMode)) return found;
    reasons += fmt::format("; {}", last_loader_error());
  }
  throw ConfigError(fmt::format("{} cannot be loaded: {}; {}", name, reasons, advice));
}

}  // namespace

SharedLibrary::SharedLibrary(std::string name, const std::vector<const char*>& variables, std::string advice)
    : name_(std::move(name)), advice_(std::move(advice)), handle_(open(name_, variables, advice_)) {}

void* SharedLibrary::address(const char* symbol) const { return dlsym(handle_, symbol); }

void* SharedLibrary::require(const char* symbol) const {
  if (void* found = address(symbol)) return found;
  throw ConfigError(fmt::format("{} has no {}: {}; {}", name_, symbol, last_loader_error(), advice_));
}

}  // namespace mantissa::cuda
