// Properties of the emulated device.
#include "core/base/check.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {

std::string no_device_reason() { return ""; }
int device_count() { return 1; }

DeviceProperties device_properties(int device) {
  MANTISSA_CHECK(device == 0, "[emulation] there is one device, asked for number {}", device);
  return {.name = "emulated GPU",
          .identity = {.uuid = "00000000-0000-0000-0000-0000656d756c", .pci_bus_id = "0000:00:00.0"},
          .major = 9,
          .minor = 0,
          .multiprocessors = 4,
          .total_bytes = size_t{8} << 30,
          .l2_bytes = size_t{1} << 20,
          .max_shared_bytes_per_block = size_t{227} << 10,
          .has_memory_pools = true};
}

int driver_version() { return 0; }
int runtime_version() { return 0; }
void set_device(int device) { device_properties(device); }

}  // namespace mantissa::cuda
