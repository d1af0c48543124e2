#pragma once

#include <cstdint>

namespace mantissa {

// Over a model.
enum class Pass : uint8_t { kForward, kBackward };

}  // namespace mantissa
