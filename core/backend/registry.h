// Backends by name. A backend's translation unit registers itself, so a program has the backends that it links.
#pragma once

#include "core/backend/backend.h"

namespace mantissa {

// A backend of the registry.
struct BackendEntry {
  std::function<std::unique_ptr<Backend>(int device_index)> create;
  // The reason that device `device_index` cannot be used on this machine; empty if it can. Does not throw.
  std::function<std::string(int device_index)> unusable_reason = [](int) { return std::string(); };
  // The number of devices in this node; 0 for none, or if ranks do not divide them (CPU).
  std::function<int()> device_count = [] { return 0; };
  std::function<DeviceIdentity(int device_index)> device_identity = [](int) { return DeviceIdentity{}; };
  // FLOP/s of matrix products according to the device's data sheet; nothing for a device without an entry.
  std::function<std::optional<double>(int device_index, DType dtype, Fp32Math fp32_math)> datasheet_flops =
      [](int, DType, Fp32Math) { return std::optional<double>(); };
  // Times the work of a stream of this backend, which must outlive the timer.
  std::function<std::unique_ptr<StreamTimer>(Stream& stream)> create_timer = [](Stream&) { return make_host_timer(); };
  bool computes_on_host = false;  // in host memory, in the calling thread
  int preference = 0;             // `auto` selects the usable backend with the highest
};

// Returns true, so that a namespace-scope constant can run it.
bool register_backend(const std::string& name, BackendEntry entry);

// Throws ConfigError with the available names if there is no such backend.
const BackendEntry& find_backend(const std::string& name);
std::unique_ptr<Backend> create_backend(const std::string& name, int device_index = 0);

std::vector<std::string> backend_names();  // in order of decreasing preference

}  // namespace mantissa
