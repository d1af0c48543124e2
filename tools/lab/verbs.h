// Verbs of the laboratory: analyze formats, probes, model, sensitivity, evidence; advise; plan; compare; prove;
// bench comm.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

// Adds the options of `mantissa advise` to its command. The result runs the verb: prints the advice to standard output,
// writes the files, and returns the exit code.
std::function<int()> add_advise_options(CLI::App& advise);

// Add `mantissa plan` and `mantissa bench comm`.
void add_plan(CLI::App& app, std::vector<Verb>& verbs);
void add_bench(CLI::App& app, std::vector<Verb>& verbs);

void add_lab_verbs(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
