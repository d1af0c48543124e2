// Fiber: a function with its own stack that can be suspended and resumed. Reports every switch to address sanitizer.
#pragma once

#include <cstddef>
#include <functional>

namespace mantissa::cuda::emulation {

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

}  // namespace mantissa::cuda::emulation
