#include "core/cuda/usable_device.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "core/cuda/cuda_archs.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {

bool runs_on(std::string_view architecture, int major, int minor) {
  int number = 0;  // sm_90a: 90
  architecture.remove_prefix(std::string_view("sm_").size());
  std::from_chars(architecture.data(), architecture.data() + architecture.size(), number);
  if (architecture.back() == 'a') return number == major * 10 + minor;
  return number / 10 == major && number % 10 <= minor;
}

std::string build_advice(int major, int minor) {
  for (const std::string_view architecture : kBuildableCudaArchs) {
    if (runs_on(architecture, major, minor))
      return fmt::format("build with --//tools/build:cuda_archs={}", architecture);
  }
  return fmt::format("a build can hold code for {} only, none of which runs on it",
                     fmt::join(kBuildableCudaArchs, ", "));
}

std::string unusable_reason(int index) try {
  if (std::string reason = no_device_reason(); !reason.empty()) return reason;
  const int count = device_count();
  if (index < 0 || index >= count) return fmt::format("there is no GPU {}: this node shows {}", index, count);
  const DeviceProperties device = device_properties(index);
  if (!device.has_memory_pools) {
    return fmt::format(
        "GPU {} ({}) has no memory pools, which every operation needs (is it a virtual GPU without unified memory?)",
        index, device.name);
  }
  const auto runs = [&](std::string_view architecture) { return runs_on(architecture, device.major, device.minor); };
  if (std::any_of(std::begin(kCudaArchs), std::end(kCudaArchs), runs)) return "";
  return fmt::format("GPU {} ({}) has compute capability {}.{}, but this program's kernels were built for {} only: {}",
                     index, device.name, device.major, device.minor, fmt::join(kCudaArchs, ", "),
                     build_advice(device.major, device.minor));
} catch (const CudaError& error) {
  return error.what();  // a GPU that does not answer
}

}  // namespace mantissa::cuda
