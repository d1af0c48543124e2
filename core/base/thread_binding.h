// Binds the threads of a team (thread_team.h) to processors.
#pragma once

#include <vector>

namespace mantissa {

// From now on the calling thread's team has one thread for each of `processors`, the operating system's numbers, and
// thread i of it, the caller being thread 0, runs on processors[i] only. Threads that the caller starts otherwise
// inherit its processor. None of `processors`, or set_threads() with another count, frees the caller again.
// Error naming the processor that the system refuses; nothing is bound then.
void bind_threads(const std::vector<int>& processors);

// Processors that the calling thread may run on, ascending.
std::vector<int> processors_of_this_thread();

}  // namespace mantissa
