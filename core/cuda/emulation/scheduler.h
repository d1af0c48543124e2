// The threads of an emulated block: Fiber, a function with its own stack that can be suspended and resumed, and the
// random choice of the thread that runs next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace mantissa::cuda::emulation {

// Reports every switch to address sanitizer.
class Fiber {
 public:
  // `body` starts at the first resume(). It must not throw, and must not return while the fiber may still be resumed.
  explicit Fiber(std::function<void()> body);
  // Abandons a body that has not returned: frees its stack and runs no destructors.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body up to its next suspend().
  void resume();
  // Called from inside the body: returns to resume().
  void suspend();

 private:
  std::function<void()> body_;
  std::byte* region_;  // a guard page, then the stack
  void* inside_ = nullptr;
  void* outside_ = nullptr;
  const void* outer_stack_ = nullptr;
  size_t outer_stack_bytes_ = 0;
  void* inner_fake_stack_ = nullptr;
};

// A small generator for scheduling decisions: splitmix64 (Steele, Lea & Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n); n > 0.
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }

  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  uint64_t state_;
};

// Draws the thread of a block that runs next. The policy is drawn for each block:
//
// Even: any thread that can run. All advance at about the same pace, in every order.
// Eager: one warp, as far as waits let it, then another. It gets ahead of the others as far as a GPU would ever let it.
// This is the rare case in which a missing barrier at the end of a loop shows.
class Scheduler {
 public:
  static constexpr int kStartOne = -1;  // take_unstarted()
  static constexpr int kNobody = -2;    // all threads wait or have returned

  explicit Scheduler(int threads);

  void begin_block(Random& random);  // no thread has started
  void add_ready(int thread);        // has started and can go on
  int next(Random& random);
  int take_unstarted();  // kNobody if all have started

 private:
  enum class Policy : uint8_t { kEven, kEager };

  int take_ready(size_t warp, size_t index);

  const int threads_;
  Policy policy_ = Policy::kEven;
  size_t warp_ = 0;                      // the warp that ran last
  std::vector<std::vector<int>> ready_;  // by warp
  size_t ready_count_ = 0;
  std::vector<int> unstarted_;  // the next one last; warp by warp if eager
};

}  // namespace mantissa::cuda::emulation
