#include "comm/registry.h"

#include <fmt/ranges.h>

#include <map>

namespace mantissa {
namespace {

std::map<std::string, CommunicatorFactory>& factories() {
  static std::map<std::string, CommunicatorFactory> instance;
  return instance;
}

}  // namespace

bool register_communicator(const std::string& name, CommunicatorFactory factory) {
  return factories().emplace(name, std::move(factory)).second;
}

std::unique_ptr<Communicator> create_communicator(const std::string& name) {
  const auto found = factories().find(name);
  if (found == factories().end()) {
    throw ConfigError(fmt::format("comm.backend: no transport named '{}'; this build has: {}", name,
                                  fmt::join(communicator_names(), ", ")));
  }
  return found->second();
}

std::vector<std::string> communicator_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

}  // namespace mantissa
