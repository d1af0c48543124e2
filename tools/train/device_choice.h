// Which backend and which of the node's devices a rank computes on.
#pragma once

#include <string>

namespace mantissa {

struct DeviceChoice {
  std::string backend;  // "cuda", "cpu"
  int index = 0;        // among the devices that this process sees
  std::string reason;   // why not a better one; empty where there is none
};

// `wanted` is the configuration's device: a backend, or "auto" for the best that this program and machine have. Ranks
// of a node take its devices in turns. ConfigError saying why if the backend that was asked for cannot be used.
DeviceChoice choose_device(const std::string& wanted, int local_rank);

// ConfigError if `device` names a backend that is not in this program, with those that are.
void require_known_device(const std::string& device);

}  // namespace mantissa
