#include "core/backend/registry.h"

#include <fmt/ranges.h>

#include <map>

namespace mantissa {
namespace {

std::map<std::string, BackendEntry>& entries() {
  static std::map<std::string, BackendEntry> instance;
  return instance;
}

}  // namespace

bool register_backend(const std::string& name, BackendEntry entry) {
  return entries().emplace(name, std::move(entry)).second;
}

const BackendEntry& find_backend(const std::string& name) {
  const auto found = entries().find(name);
  if (found != entries().end()) return found->second;
  throw ConfigError(
      fmt::format("device: no backend named '{}'; this build has: {}", name, fmt::join(backend_names(), ", ")));
}

std::unique_ptr<Backend> create_backend(const std::string& name, int device_index) {
  return find_backend(name).create(device_index);
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries()) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return entries().at(a).preference > entries().at(b).preference;
  });
  return names;
}

}  // namespace mantissa
