// Verbs that train: train, config.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

void add_train_verbs(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
