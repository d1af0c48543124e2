// Transports by name. A transport's translation unit registers itself; the program gets those that are linked in.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mantissa {

using CommunicatorFactory = std::function<std::unique_ptr<Communicator>()>;

// Returns true, so that a namespace-scope constant can run it.
bool register_communicator(const std::string& name, CommunicatorFactory factory);

// ConfigError naming the transports that are there when `name` is not.
std::unique_ptr<Communicator> create_communicator(const std::string& name);

std::vector<std::string> communicator_names();

}  // namespace mantissa
