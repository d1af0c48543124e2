// Backends by name. A backend's translation unit registers itself; the program gets those that are linked in.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/backend.h"

namespace mantissa {

using BackendFactory = std::function<std::unique_ptr<Backend>(int device_index)>;

// Returns true, so that a namespace-scope constant can run it.
bool register_backend(const std::string& name, BackendFactory factory);

// ConfigError naming the backends that are there when `name` is not.
std::unique_ptr<Backend> create_backend(const std::string& name, int device_index = 0);

std::vector<std::string> backend_names();

}  // namespace mantissa
