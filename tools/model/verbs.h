// Verbs for models: generate, evaluate, score, import, export.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

void add_model_verbs(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
