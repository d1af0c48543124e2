// export_start() and compare_recompute(): modes of the program `step`.
#pragma once

#include <functional>
#include <string>

#include "tools/config/config.h"

namespace mantissa {

// The start of a training on random tokens, as one safetensors file, for another program to train the same: initial
// weights (fp32, by parameter name, [out, in]), tokens and targets of the first `steps` steps (i32, (steps,
// global_batch, context)), and in the metadata the model's shape and the optimizer's settings under their
// configuration keys. ConfigError unless the model is GPT-2's block; DataError if the file cannot be written.
void export_start(const Config& config, int64_t steps, const std::string& path);

// Compares the settings of train.recompute in turns: time and memory of each, relative to `none`. Starts
// run_paced("none"), ("selective") and ("full") as separate processes. They run rounds A B C A B C, so that changes on
// the machine affect all three. Prints a line for each. An Error of one process ends all.
void compare_recompute(const std::function<int(const std::string& setting)>& run_paced, int rounds);

}  // namespace mantissa
