// `mantissa advise`: how fast a model would train in each precision, on a device that need not be present; and plans of
// precision under a budget.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace mantissa {

// Beside those of ExitCode: there is a plan, and its files are written, but it misses the budget.
inline constexpr int kBudgetMissed = 9;

// Adds the options of the verb to its command. The result runs the verb: prints the advice to standard output, writes
// the files, and returns the exit code.
std::function<int()> add_advise_options(CLI::App& advise);

}  // namespace mantissa
