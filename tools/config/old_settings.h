// Settings whose names or forms have changed.
#pragma once

#include "tools/config/config_node.h"

namespace mantissa {

enum class OldSettings : uint8_t {
  kRefuse,  // ConfigError that shows the new spelling
  kRead,    // rewritten to the equivalent new setting, for configurations in checkpoints
};

// Handles precision.ops and precision.layers, also of phases and levels, precision.tf32, optimizer.moment_dtype and
// test.gradients.
void replace_old_settings(ConfigNode& root, OldSettings mode);

}  // namespace mantissa
