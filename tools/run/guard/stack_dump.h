// The stacks of all threads of this process, as text.
#pragma once

#include <string>

namespace mantissa {

// A line for each frame, "function+0x1f (library)", below a line for each thread. Threads of which the system lets none
// answer within a second are named as such. One call at a time; for a process that is about to end: threads are
// interrupted by a signal wherever they are.
std::string stacks_of_all_threads();

}  // namespace mantissa
