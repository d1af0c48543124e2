// Verbs that look at a run: status, watch, report, postmortem.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

void add_run_verbs(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
