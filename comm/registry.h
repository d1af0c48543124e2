// Registry of transports. Each transport that is linked into the program registers itself by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mantissa {

struct CommunicatorEntry {
  std::function<std::unique_ptr<Communicator>()> create;
  // Why this machine cannot use it; empty if it can. Does not throw.
  std::function<std::string()> unusable_reason = [] { return std::string(); };
};

// Returns true, so that a namespace-scope constant can call it.
bool register_communicator(const std::string& name, CommunicatorEntry entry);
// ConfigError with the registered names if `name` is not one of them.
const CommunicatorEntry& find_communicator(const std::string& name);
std::unique_ptr<Communicator> create_communicator(const std::string& name);
std::vector<std::string> communicator_names();

}  // namespace mantissa
