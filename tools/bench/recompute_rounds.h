// Compares the settings of train.recompute in turns: time and memory of each, relative to `none`.
#pragma once

#include <functional>
#include <string>

namespace mantissa {

// Starts run_paced("none"), ("selective") and ("full") as separate processes, which run rounds A B C A B C, so that
// changes on the machine affect all three. Prints a line for each. An Error of one of them ends all.
void compare_recompute(const std::function<int(const std::string& setting)>& run_paced, int rounds);

}  // namespace mantissa
