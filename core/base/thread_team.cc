#include "core/base/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/check.h"

namespace mantissa {
namespace {

// How long an idle thread looks out before it sleeps. Waking it takes some tens of microseconds; the pauses between the
// kernels of a step are shorter than this.
constexpr std::chrono::microseconds kLookOut{50};
constexpr size_t kCacheLineBytes = 64;

int initial_threads() {
  const char* const wanted = std::getenv("OMP_NUM_THREADS");
  const int count = wanted ? std::atoi(wanted) : 0;
  return count > 0 ? count : usable_processors();
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Until done(), or for as long as `time`. Tells whether it is done.
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

thread_local int this_thread = 0;
thread_local bool in_task = false;

class ThreadTeam {
 public:
  // Threads that outnumber the processors sleep at once: whom they wait for needs theirs.
  explicit ThreadTeam(int count)
      : count_(count), look_out_time_(count > usable_processors() ? std::chrono::microseconds(0) : kLookOut) {
    for (int index = 1; index < count; ++index) workers_.emplace_back([this, index] { work(index); });
  }
  ~ThreadTeam() {
    ending_.store(true);
    ticket_.fetch_add(kNextJob);
    ticket_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int count() const { return count_; }

  void run(int64_t tasks, internal::TaskCall call, const void* body) {
    tasks_ = tasks;
    call_ = call;
    body_ = body;
    failed_.store(false, std::memory_order_relaxed);
    failure_ = nullptr;
    done_.store(0, std::memory_order_relaxed);
    const uint64_t job = (ticket_.load(std::memory_order_relaxed) & ~kLeft) + kNextJob;
    ticket_.store(job | static_cast<uint64_t>(tasks), std::memory_order_seq_cst);
    ticket_.notify_all();
    take_tasks(job);
    const auto all_done = [this, tasks] { return done_.load(std::memory_order_acquire) == tasks; };
    while (!look_out(look_out_time_, all_done)) {
      const int64_t seen = done_.load(std::memory_order_acquire);
      if (seen != tasks) done_.wait(seen, std::memory_order_acquire);
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // A ticket: the number of the job, and how many of its tasks nobody has taken.
  static constexpr uint64_t kNextJob = uint64_t{1} << 32;
  static constexpr uint64_t kLeft = kNextJob - 1;

  void work(int index) {
    this_thread = index;
    in_task = true;
    uint64_t job = 0;
    while (true) {
      uint64_t ticket = 0;
      const auto is_new = [&] {
        ticket = ticket_.load(std::memory_order_acquire);
        return (ticket & ~kLeft) != job;
      };
      while (!look_out(look_out_time_, is_new)) ticket_.wait(ticket, std::memory_order_acquire);
      if (ending_.load()) return;
      job = ticket & ~kLeft;
      take_tasks(job);
    }
  }

  // Tasks of `job` until none is left. Whoever holds a task keeps the job from ending: only then is it read what the
  // job is.
  void take_tasks(uint64_t job) {
    int64_t taken = 0;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while ((ticket & ~kLeft) == job && (ticket & kLeft) != 0) {
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        continue;
      }
      run_task(tasks_ - static_cast<int64_t>(ticket & kLeft));
      ++taken;
      ticket = ticket_.load(std::memory_order_acquire);
    }
    if (taken == 0) return;
    done_.fetch_add(taken, std::memory_order_acq_rel);
    done_.notify_one();
  }

  void run_task(int64_t task) {
    try {
      if (!failed_.load(std::memory_order_relaxed)) call_(body_, task);
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  const int count_;
  const std::chrono::microseconds look_out_time_;
  std::vector<std::thread> workers_;
  int64_t tasks_ = 0;
  internal::TaskCall call_ = nullptr;
  const void* body_ = nullptr;
  std::atomic<bool> ending_ = false;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;  // of the first task that failed
  alignas(kCacheLineBytes) std::atomic<uint64_t> ticket_ = 0;
  alignas(kCacheLineBytes) std::atomic<int64_t> done_ = 0;
};

// What a thread that calls has.
struct OwnTeam {
  int wanted = initial_threads();
  std::unique_ptr<ThreadTeam> team;

  ThreadTeam& get() {
    if (!team || team->count() != wanted) {
      team.reset();
      team = std::make_unique<ThreadTeam>(wanted);
    }
    return *team;
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

int threads() { return own_team.wanted; }

void set_threads(int count) {
  MANTISSA_CHECK(count > 0, "[threads] a team needs at least one thread, got {}", count);
  own_team.wanted = count;
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
