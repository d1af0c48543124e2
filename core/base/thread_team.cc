#include "core/base/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <thread>

#include "core/base/check.h"

namespace mantissa {
namespace {

// How long an idle thread polls before it sleeps: longer than the pauses between kernels. Waking takes about as long.
constexpr std::chrono::microseconds kLookOut{50};
constexpr size_t kCacheLineBytes = 64;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Polls until done(), for at most `time`. Returns whether it is done.
template <typename Done>
bool look_out(std::chrono::microseconds time, const Done& done) {
  if (done()) return true;
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 16; ++i) {
      pause();
      if (done()) return true;
    }
  }
  return false;
}

// Returns false and sets errno if the system refuses.
bool bind_this_thread(int processor) {
  if (processor < 0 || processor >= CPU_SETSIZE) {
    errno = EINVAL;
    return false;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

thread_local int this_thread = 0;
thread_local bool in_task = false;

class ThreadTeam {
 public:
  // If threads outnumber processors, idle ones sleep at once. `processors`: by thread; empty if threads are not bound.
  ThreadTeam(int count, const std::vector<int>& processors)
      : count_(count),
        shares_(static_cast<size_t>(count)),
        look_out_time_(processors.empty() && count > usable_processors() ? std::chrono::microseconds(0) : kLookOut) {
    try {
      for (int index = 1; index < count; ++index) {
        const int processor = processors.empty() ? -1 : processors[static_cast<size_t>(index)];
        workers_.emplace_back([this, index, processor] {
          if (processor >= 0) bind_this_thread(processor);  // has succeeded before: see bind_threads
          work(index);
        });
      }
    } catch (const std::exception& exception) {
      const size_t number = workers_.size() + 1;
      end_workers();
      throw ConfigError(fmt::format(
          "[threads] thread {} of {} cannot be started: {}; give a smaller train.threads, or raise the limits on "
          "processes and on memory",
          number, count, exception.what()));
    }
  }
  ~ThreadTeam() { end_workers(); }
  ThreadTeam& operator=(ThreadTeam&&) = delete;

  int count() const { return count_; }

  void run(int64_t tasks, internal::TaskCall call, const void* body) {
    tasks_ = tasks;
    call_ = call;
    body_ = body;
    failed_.store(false, std::memory_order_relaxed);
    failure_ = nullptr;
    done_.store(0, std::memory_order_relaxed);
    const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
    for (int index = 0; index < count_; ++index) {
      const auto left = static_cast<uint64_t>(share_end(index) - share_end(index - 1));
      shares_[static_cast<size_t>(index)].ticket.store(uint64_t{job} << 32 | left, std::memory_order_relaxed);
    }
    job_.store(job, std::memory_order_seq_cst);
    job_.notify_all();
    take_tasks(job, 0);
    const auto all_done = [this, tasks] { return done_.load(std::memory_order_acquire) == tasks; };
    while (!look_out(look_out_time_, all_done)) {
      const int64_t seen = done_.load(std::memory_order_acquire);
      if (seen != tasks) done_.wait(seen, std::memory_order_acquire);
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // A thread's share of the tasks. The upper half of its ticket is the job's number; the lower half counts tasks left.
  struct alignas(kCacheLineBytes) Share {
    std::atomic<uint64_t> ticket = 0;
  };
  static constexpr uint64_t kLeft = 0xffffffff;

  void end_workers() {
    ending_.store(true);
    job_.fetch_add(1);
    job_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int64_t share_end(int index) const { return tasks_ * (index + 1) / count_; }

  void work(int index) {
    this_thread = index;
    in_task = true;
    uint32_t job = 0;
    while (true) {
      uint32_t seen = 0;
      const auto is_new = [&] {
        seen = job_.load(std::memory_order_acquire);
        return seen != job;
      };
      while (!look_out(look_out_time_, is_new)) job_.wait(seen, std::memory_order_acquire);
      if (ending_.load()) return;
      job = seen;
      take_tasks(job, index);
    }
  }

  // Takes tasks of `job` until none is left, starting with the share of thread `first`.
  void take_tasks(uint32_t job, int first) {
    int64_t taken = 0;
    for (int i = 0; i < count_; ++i) taken += take_share(job, (first + i) % count_);
    if (taken == 0) return;
    done_.fetch_add(taken, std::memory_order_acq_rel);
    done_.notify_one();
  }

  // Only with a task in hand, so that the job cannot end, may a thread read its members (tasks_, call_, body_).
  int64_t take_share(uint32_t job, int index) {
    std::atomic<uint64_t>& ticket = shares_[static_cast<size_t>(index)].ticket;
    int64_t taken = 0;
    uint64_t seen = ticket.load(std::memory_order_acquire);
    while (seen >> 32 == job && (seen & kLeft) != 0) {
      if (!ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      run_task(share_end(index) - static_cast<int64_t>(seen & kLeft));
      ++taken;
      seen = ticket.load(std::memory_order_acquire);
    }
    return taken;
  }

  void run_task(int64_t task) {
    try {
      if (!failed_.load(std::memory_order_relaxed)) call_(body_, task);
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  const int count_;
  std::vector<Share> shares_;
  const std::chrono::microseconds look_out_time_;
  std::vector<std::thread> workers_;
  int64_t tasks_ = 0;
  internal::TaskCall call_ = nullptr;
  const void* body_ = nullptr;
  std::atomic<bool> ending_ = false;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;  // from the first task that failed
  alignas(kCacheLineBytes) std::atomic<uint32_t> job_ = 0;
  alignas(kCacheLineBytes) std::atomic<int64_t> done_ = 0;
};

// The state of a calling thread.
struct OwnTeam {
  int wanted = threads_of_environment() > 0 ? threads_of_environment() : usable_processors();
  std::vector<int> processors;  // by thread; empty: not bound
  cpu_set_t free_set{};         // affinity of the calling thread before it was bound
  std::unique_ptr<ThreadTeam> team;

  ThreadTeam& get() {
    if (!team || team->count() != wanted) {
      team.reset();
      team = std::make_unique<ThreadTeam>(wanted, processors);
    }
    return *team;
  }

  void free() {
    if (processors.empty()) return;
    team.reset();
    processors.clear();
    sched_setaffinity(0, sizeof(free_set), &free_set);
  }
};
thread_local OwnTeam own_team;

struct InTask {
  InTask() { in_task = true; }
  ~InTask() { in_task = false; }
};

}  // namespace

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int threads_of_environment() {
  const char* const text = std::getenv("OMP_NUM_THREADS");
  return text != nullptr ? std::max(0, std::atoi(text)) : 0;
}

int threads() { return own_team.wanted; }

void set_threads(int count) {
  MANTISSA_CHECK(count > 0, "[threads] a team needs at least one thread, got {}", count);
  if (count != own_team.wanted) own_team.free();
  own_team.wanted = count;
}

std::vector<int> processors_of_this_thread() {
  cpu_set_t set;
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  }
  return processors;
}

void bind_threads(const std::vector<int>& processors) {
  own_team.free();
  if (processors.empty()) return;
  cpu_set_t before;
  const bool known = sched_getaffinity(0, sizeof(before), &before) == 0;
  for (size_t thread = processors.size(); thread-- > 0;) {  // tries all; the caller keeps the first
    if (known && bind_this_thread(processors[thread])) continue;
    const int reason = errno;
    if (known) sched_setaffinity(0, sizeof(before), &before);
    throw Error(ExitCode::kInternal, fmt::format("[threads] thread {} cannot be bound to processor {}: {}", thread,
                                                 processors[thread], std::generic_category().message(reason)));
  }
  own_team.team.reset();
  own_team.free_set = before;
  own_team.processors = processors;
  own_team.wanted = static_cast<int>(processors.size());
}

int current_thread() { return this_thread; }

namespace internal {

void run_tasks(int64_t tasks, TaskCall call, const void* body) {
  MANTISSA_CHECK(tasks <= INT32_MAX, "[threads] at most {} tasks at a time, got {}", INT32_MAX, tasks);
  if (in_task || tasks <= 1 || own_team.wanted == 1) {
    for (int64_t task = 0; task < tasks; ++task) call(body, task);
    return;
  }
  ThreadTeam& team = own_team.get();
  const InTask scope;
  team.run(tasks, call, body);
}

}  // namespace internal
}  // namespace mantissa
