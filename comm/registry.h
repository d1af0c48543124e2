// Transports by name. A transport's translation unit registers itself; the program gets those that are linked in.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mantissa {

struct CommunicatorEntry {
  std::function<std::unique_ptr<Communicator>()> create;
  // Why it cannot be used on this machine; empty if it can. Does not throw.
  std::function<std::string()> unusable_reason = [] { return std::string(); };
};

// Returns true, so that a namespace-scope constant can run it.
bool register_communicator(const std::string& name, CommunicatorEntry entry);

// ConfigError naming the transports that are there when `name` is not.
const CommunicatorEntry& find_communicator(const std::string& name);
std::unique_ptr<Communicator> create_communicator(const std::string& name);

std::vector<std::string> communicator_names();

}  // namespace mantissa
