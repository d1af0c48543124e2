#include "tools/train/device_choice.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/backend/registry.h"

namespace mantissa {
namespace {

constexpr const char* kNotBuiltIn =
    "this program was built without CUDA (the build uses the toolkit that CUDA_HOME names, or finds)";

bool is_built_in(const std::string& backend) {
  const std::vector<std::string> names = backend_names();
  return std::find(names.begin(), names.end(), backend) != names.end();
}

int index_of(const BackendEntry& backend, int local_rank) {
  const int devices = backend.device_count();
  return devices > 0 ? local_rank % devices : 0;
}

}  // namespace

void require_known_device(const std::string& device) {
  if (device == "auto" || is_built_in(device)) return;
  if (device == "cuda") throw ConfigError(fmt::format("device: cuda cannot be used: {}", kNotBuiltIn));
  throw ConfigError(
      fmt::format("device: nothing is named '{}' here; there are: auto, {}", device, fmt::join(backend_names(), ", ")));
}

DeviceChoice choose_device(const std::string& wanted, int local_rank) {
  require_known_device(wanted);
  DeviceChoice choice;
  if (wanted != "auto") {
    const BackendEntry& backend = find_backend(wanted);
    choice = {.backend = wanted, .index = index_of(backend, local_rank), .reason = {}};
    if (const std::string reason = backend.unusable_reason(choice.index); !reason.empty()) {
      throw ConfigError(fmt::format("device: {} cannot be used: {}", wanted, reason));
    }
    return choice;
  }
  if (!is_built_in("cuda")) choice.reason = kNotBuiltIn;
  for (const std::string& name : backend_names()) {  // the best first
    const BackendEntry& backend = find_backend(name);
    choice.index = index_of(backend, local_rank);
    const std::string reason = backend.unusable_reason(choice.index);
    if (reason.empty()) {
      choice.backend = name;
      return choice;
    }
    choice.reason = reason;
  }
  throw ConfigError(fmt::format("device: auto found nothing to compute on: {}", choice.reason));
}

}  // namespace mantissa
