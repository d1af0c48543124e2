// Which thread of a block runs next: drawn at random, in one of two ways, which is drawn for each block.
//
// Even: any thread that can run. All advance at about the same pace, in every order.
// Eager: one warp, as far as waits let it, then another. It is ahead of the others by as much as a GPU would ever let
// it be: the rare case there, in which a missing barrier at the end of a loop shows.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cuda/emulation/random.h"

namespace mantissa::cuda::emulation {

class Scheduler {
 public:
  static constexpr int kStartOne = -1;  // take_unstarted()
  static constexpr int kNobody = -2;    // all wait, or have returned

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
  size_t warp_ = 0;                      // that ran last
  std::vector<std::vector<int>> ready_;  // by warp
  size_t ready_count_ = 0;
  std::vector<int> unstarted_;  // the next one last; warp by warp if eager
};

}  // namespace mantissa::cuda::emulation
