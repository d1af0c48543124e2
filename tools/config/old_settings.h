// Settings that have another name or form now.
#pragma once

#include "core/io/config_node.h"

namespace mantissa {

enum class OldSettings : uint8_t {
  kRefuse,  // ConfigError that shows the new spelling of what is written
  kRead,    // rewritten as what they mean: for the configurations that checkpoints keep
};

// Handles precision.ops and precision.layers, also of phases and levels, and precision.tf32 and optimizer.moment_dtype.
void replace_old_settings(ConfigNode& root, OldSettings mode);

}  // namespace mantissa
