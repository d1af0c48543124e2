// `mantissa import`: the model of another program as a run folder: settings, a checkpoint of step 0 with the weights
// bit for bit, and the files of a tokenizer. `mantissa export`: the weights of a run in the files of other programs.
// What they make is there whole or not at all.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

void add_import(CLI::App& app, std::vector<Verb>& verbs);
void add_export(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
