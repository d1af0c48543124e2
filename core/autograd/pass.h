#pragma once

#include <cstdint>

namespace mantissa {

// Direction of a pass over a model.
enum class Pass : uint8_t { kForward, kBackward };

}  // namespace mantissa
