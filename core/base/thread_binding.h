// Binds the threads of a team (thread_team.h) to processors.
#pragma once

#include <vector>

namespace mantissa {

// From now on the calling thread's team has one thread for each of `processors` (the operating system's numbers).
// Thread i runs only on processors[i]; thread 0 is the caller. Other threads that the caller starts inherit its
// processor. Empty `processors`, or set_threads() with another count, unbinds the caller. Throws Error naming the
// processor that the system refuses; nothing is bound then.
void bind_threads(const std::vector<int>& processors);

// Processors that the calling thread may run on, ascending.
std::vector<int> processors_of_this_thread();

}  // namespace mantissa
