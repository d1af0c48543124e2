// The precision table: what every op of a model computes in, and what its linear layers round their operands to.
#pragma once

#include <string>

#include "core/backend/backend.h"
#include "tools/config/config.h"

namespace mantissa {

// A line for each op of the forward pass in order, blocks of equal settings in one. `prefix` begins every line.
// ConfigError as walk_step().
std::string precision_table(const Config& config, std::string_view prefix = "");

// One line for the log: how many linear layers round operands, and for each recipe among them whether the device
// multiplies codes, and by what, or why that is emulated. Empty where none rounds.
std::string rounding_summary(const Config& config, const Backend& backend);
// Likewise: how many linear layers make products of fp32 numbers otherwise than of the numbers as they are.
std::string fp32_products_summary(const Config& config);

}  // namespace mantissa
