// The threads that kernels share. Each calling thread keeps a team of its own, of set_threads() threads.
//
// Each thread starts with its own share of the tasks, in order, then takes tasks from other shares. So calls with the
// same number of tasks find in a core's cache what an earlier call left there. A call ends when its tasks have ended,
// even if some threads took no task: on a busy machine, a thread delayed by the operating system holds up only its
// current task. Idle threads poll for a moment, then sleep to leave their cores to others.
#pragma once

#include <cstdint>
#include <vector>

namespace mantissa {

int usable_processors();  // processors that this process may run on

int threads_of_environment();  // OMP_NUM_THREADS if that is a number, else 0

// The size of the calling thread's team, the caller included. Initially threads_of_environment(), or
// usable_processors() if that is 0. The first use of a team throws ConfigError if the system refuses so many threads.
int threads();
void set_threads(int count);

int current_thread();  // the index of the calling thread in its team, in [0, threads()); 0 outside of parallel_for()

// From now on the calling thread's team has one thread for each of `processors` (the operating system's numbers).
// Thread i runs only on processors[i]; thread 0 is the caller, whose other threads inherit its processor. Empty
// `processors`, or set_threads() with another count, unbinds. Error naming a refused processor; none is bound.
void bind_threads(const std::vector<int>& processors);

std::vector<int> processors_of_this_thread();  // processors that the calling thread may run on, ascending

namespace internal {
using TaskCall = void (*)(const void* body, int64_t task);
void run_tasks(int64_t tasks, TaskCall call, const void* body);
}  // namespace internal

// Calls body(task) once for each task in [0, tasks). Tasks must neither wait for each other nor depend on which thread
// runs them. A call from within a task runs its tasks one after the other. Rethrows the first exception of a body once
// all started tasks have ended; the others may be skipped.
template <typename Body>
void parallel_for(int64_t tasks, const Body& body) {
  internal::run_tasks(
      tasks, [](const void* closure, int64_t task) { (*static_cast<const Body*>(closure))(task); }, &body);
}

}  // namespace mantissa
