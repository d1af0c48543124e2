// `mantissa evaluate` and `mantissa score`: how well a model predicts text, and which choices it prefers. Both also run
// under mpirun, with the same results for every number of ranks.
#pragma once

#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

// Prints a line for each text and task.
void add_evaluate(CLI::App& app, std::vector<Verb>& verbs);
// Prints a line for each token but the first: position, token, log-probability in nats, text. The numbers have the
// digits that give the same fp32 bits again.
void add_score(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
