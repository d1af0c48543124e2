// The threads that kernels share: a team for each thread that calls, as large as set_threads() says, kept from call to
// call.
//
// Each thread begins with its own share of the tasks, one after the other: calls with the same number of tasks find in
// a core's cache what an earlier one has left there. Then it takes what others have left. A call ends when its tasks
// have ended, whether or not every thread has come to take one: a thread that the operating system keeps waiting on a
// busy machine delays only the task that it is in. Idle threads look out for work for a moment, then sleep: a core that
// somebody else could use is not spun away.
#pragma once

#include <cstdint>

namespace mantissa {

// Processors that this process may run on.
int usable_processors();

// OMP_NUM_THREADS where that is a number, else 0.
int threads_of_environment();

// Of the calling thread's team, itself included. At first threads_of_environment(), or without usable_processors().
// ConfigError, where a team is used first, if the system refuses so many.
int threads();
void set_threads(int count);

// Which of its team the calling thread is, in [0, threads()); 0 outside of parallel_for().
int current_thread();

namespace internal {
using TaskCall = void (*)(const void* body, int64_t task);
void run_tasks(int64_t tasks, TaskCall call, const void* body);
}  // namespace internal

// Calls body(task) once for each task in [0, tasks). Tasks must neither wait for each other nor depend on who runs
// them. Within a task the calls run one after the other. What a body throws first is thrown here, when all that began
// have ended; tasks may then be left out.
template <typename Body>
void parallel_for(int64_t tasks, const Body& body) {
  internal::run_tasks(
      tasks, [](const void* closure, int64_t task) { (*static_cast<const Body*>(closure))(task); }, &body);
}

}  // namespace mantissa
