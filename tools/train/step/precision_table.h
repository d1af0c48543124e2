// The precision of a model as text: the dtype of every op, the formats of rounded operands of linear layers, and the
// weights that travel between ranks as codes of 8 bits (comm.gather).
#pragma once

#include <string>

#include "comm/coded_gather.h"
#include "comm/flat_buckets.h"
#include "core/backend/backend.h"
#include "tools/config/config.h"

namespace mantissa {

// A line for each op of the forward pass, in order; blocks with equal settings share a line. `prefix` begins every
// line. ConfigError as ops_of().
std::string precision_table(const Config& config, std::string_view prefix = "");

// One line for the log: how many linear layers round operands; for each of their recipes, whether the device multiplies
// the codes itself, or why the products are emulated. Empty if none rounds.
std::string rounding_summary(const Config& config, const Backend& backend);
// One line for the log: how many linear layers multiply fp32 numbers in another way (tf32, bf16x3). Empty if none.
std::string fp32_products_summary(const Config& config);

// One line for the log: bytes with and without codes, or a note if nothing is sent. Empty with `working`.
std::string gather_summary(const Config& config, const FlatBuckets& buckets, const PrecisionPolicy& policy);

}  // namespace mantissa
