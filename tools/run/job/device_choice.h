// The device that a rank computes on.
#pragma once

#include <memory>
#include <string>

#include "comm/gpu_claim.h"
#include "core/backend/backend.h"
#include "tools/config/config.h"

namespace mantissa {

// The backend, and the node's device, that a rank computes on.
struct DeviceChoice {
  std::string backend;  // "cuda", "cpu"
  int index = 0;        // among the devices that this process sees
  std::string reason;   // why not a better one; empty where there is none
};

// `wanted` is the configuration's device: a backend, or "auto" for the best that this program and machine have. Ranks
// of a node take its devices in turns. ConfigError saying why if the backend that was asked for cannot be used.
DeviceChoice choose_device(const std::string& wanted, int local_rank);

// Whether the device that choose_device() takes computes in host memory. A device that is named need not be usable
// here.
bool computes_on_host(const std::string& wanted, int local_rank);

// ConfigError if `device` names a backend that is not in this program, with those that are.
void require_known_device(const std::string& device);

// The claim of a rank on its device, to find ranks that share one.
GpuClaim claim_of(const DeviceChoice& choice);

// ConfigError if the device does not compute in the configuration's precision.
void require_precision(const Config& config, const DeviceChoice& device);
// The chosen device, with the settings of the section `cuda`. ConfigError as above.
std::unique_ptr<Backend> open_device(const Config& config, const DeviceChoice& device);

}  // namespace mantissa
