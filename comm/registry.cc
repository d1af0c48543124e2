#include "comm/registry.h"

#include <fmt/ranges.h>

#include <map>

namespace mantissa {
namespace {

std::map<std::string, CommunicatorEntry>& entries() {
  static std::map<std::string, CommunicatorEntry> instance;
  return instance;
}

}  // namespace

bool register_communicator(const std::string& name, CommunicatorEntry entry) {
  return entries().emplace(name, std::move(entry)).second;
}

const CommunicatorEntry& find_communicator(const std::string& name) {
  const auto found = entries().find(name);
  if (found == entries().end()) {
    throw ConfigError(fmt::format("comm.backend: no transport named '{}'; this build has: {}", name,
                                  fmt::join(communicator_names(), ", ")));
  }
  return found->second;
}

std::unique_ptr<Communicator> create_communicator(const std::string& name) { return find_communicator(name).create(); }

std::vector<std::string> communicator_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries()) names.push_back(name);
  return names;
}

}  // namespace mantissa
