// The smallest valid configuration, for tests.
#pragma once

#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa::testing {

// Defaults with training data and these overrides.
inline Config minimal_config(std::vector<std::string> overrides = {}) {
  return parse_config("data:\n  train: [a.txt]\n", "a.yaml", overrides);
}

}  // namespace mantissa::testing
