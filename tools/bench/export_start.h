// A mode of the program `step`.
#pragma once

#include <string>

#include "tools/config/config.h"

namespace mantissa {

// The start of a training on random tokens, as one safetensors file, for another program to train the same: initial
// weights (fp32, by parameter name, [out, in]), tokens and targets of the first `steps` steps (i32, (steps,
// global_batch, context)), and in the metadata the model's shape and the optimizer's settings under their
// configuration keys. ConfigError unless the model is GPT-2's block; DataError if the file cannot be written.
void export_start(const Config& config, int64_t steps, const std::string& path);

}  // namespace mantissa
