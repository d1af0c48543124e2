// The settings of train.recompute by turns: time and memory of each beside those of `none`.
#pragma once

#include <functional>
#include <string>

namespace mantissa {

// Starts run_paced("none"), ("selective") and ("full") as processes of their own, which run rounds A B C A B C, so that
// whatever changes on the machine meets all three, and prints a line for each. An Error of one of them ends all.
void compare_recompute(const std::function<int(const std::string& setting)>& run_paced, int rounds);

}  // namespace mantissa
