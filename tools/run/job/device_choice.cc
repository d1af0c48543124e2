#include "tools/run/job/device_choice.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/backend/registry.h"

namespace mantissa {
namespace {

constexpr const char* kNotBuiltIn =
    "this program was built without CUDA (MANTISSA_CUDA=off, or no toolkit was found: docs/gpu.md)";

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

bool computes_on_host(const std::string& wanted, int local_rank) {
  if (wanted != "auto") return is_built_in(wanted) && find_backend(wanted).computes_on_host;
  return find_backend(choose_device(wanted, local_rank).backend).computes_on_host;
}

GpuClaim claim_of(const DeviceChoice& choice) {
  const BackendEntry& backend = find_backend(choice.backend);
  return {.node = this_node(),
          .gpu = backend.device_identity(choice.index),
          .index = choice.index,
          .visible_gpus = backend.device_count()};
}

void require_precision(const Config& config, const DeviceChoice& device) {
  if (!config.precision.is_fp64() || find_backend(device.backend).computes_on_host) return;
  throw ConfigError(
      fmt::format("precision.compute: fp64 is computed only on the CPU, and device: {} chose {}; give device=cpu, or "
                  "precision.compute=fp32, bf16 or fp16",
                  config.device, device.backend));
}

std::unique_ptr<Backend> open_device(const Config& config, const DeviceChoice& device) {
  require_precision(config, device);
  auto backend = create_backend(device.backend, device.index);
  backend->set_gemm_options({.selection = config.cuda.gemm, .narrow_math = config.cuda.narrow_math});
  backend->set_attention_choice(config.cuda.attention);
  return backend;
}

}  // namespace mantissa
