#include "core/backend/registry.h"

#include <fmt/ranges.h>

#include <map>

namespace mantissa {
namespace {

std::map<std::string, BackendFactory>& factories() {
  static std::map<std::string, BackendFactory> instance;
  return instance;
}

}  // namespace

bool register_backend(const std::string& name, BackendFactory factory) {
  return factories().emplace(name, std::move(factory)).second;
}

std::unique_ptr<Backend> create_backend(const std::string& name, int device_index) {
  const auto found = factories().find(name);
  if (found == factories().end()) {
    throw ConfigError(
        fmt::format("device: no backend named '{}'; this build has: {}", name, fmt::join(backend_names(), ", ")));
  }
  return found->second(device_index);
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

}  // namespace mantissa
