// `mantissa generate`: text from a run, or from a model of another program.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

// Continues texts up to a token that ends them, or a stop string. Prints the prompt, but for a conversation, and what
// follows it, as it is generated; for a file of prompts a line of JSON each.
void add_generate(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
