// Device: where a tensor's bytes live.
#pragma once

#include <cstdint>

namespace mantissa {

struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

}  // namespace mantissa
