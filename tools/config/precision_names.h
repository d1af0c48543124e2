// Short names of precisions, such as "mxfp8:attention_high".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "amp/precision_rules.h"

namespace mantissa {

// The uniform precisions, the most exact first: "fp64", "fp32", "tf32", "bf16x6", "bf16x3", "bf16", "fp16", and the
// recipes "delayed", "current", "block", "mxfp8", "nvfp4" over bf16.
std::vector<std::string> uniform_precisions();
// The precision of one of these names, of "fp8" for "delayed" and "fp4" for "nvfp4", or of a recipe with a format, each
// also with a pattern. Nothing for other texts.
std::optional<PrecisionConfig> parse_precision(const std::string& name);
// The name without an alias. Rules, working weights and the dtype below a recipe do not show in it.
std::string precision_name(const PrecisionConfig& precision);
// The same for a name that parse_precision() reads; other texts as they are.
std::string without_alias(const std::string& name);

// The format to which "bf16", "fp16" or a recipe lowers products. Nothing for other texts.
std::optional<RuleFormat> parse_low_format(const std::string& text);

}  // namespace mantissa
