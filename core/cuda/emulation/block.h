// A thread block of an emulated kernel. Its threads are fibers and run one at a time, until they wait.
//
// The next thread is drawn at random (scheduler.h), to expose code that relies on an order. Shared memory starts out as
// NaN, and its end is watched. A deadlock is an error with the waiting threads and their call sites.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/cuda/emulation/faults.h"
#include "core/cuda/emulation/scheduler.h"

namespace mantissa::cuda::emulation {

constexpr size_t kSharedAlignmentBytes = 16;  // the size of the largest access

// A block's shared memory. It starts out as NaN and ends at the requested size. An access beyond the end crashes. In
// the few bytes to the next multiple of kSharedAlignmentBytes, address sanitizer detects it, or end_is_intact() detects
// a write.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void clear();  // all NaN
  bool end_is_intact() const;

 private:
  size_t padding() const { return static_cast<size_t>(guard_ - data_) - bytes_; }

  const size_t bytes_;
  size_t mapped_bytes_;
  std::byte *region_, *data_;
  std::byte* guard_;  // a page that cannot be accessed
};

// Asynchronous copies that an emulated thread has started but not waited for. They land as late as a GPU may let them
// land: when the thread waits. Until then the destination is NaN. This exposes both a missing wait and a copy into
// memory that is still being read.
class AsyncCopies {
 public:
  // Copies `bytes` from `from`; writes zeros if `from` is null.
  void start(void* to, const void* from, size_t bytes);
  // Makes a group of the copies started since the last call.
  void commit();
  // Lets all but the latest `pending` groups land.
  void wait(size_t pending);

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  std::vector<Copy> copies_;         // not landed yet, in the order of their start
  std::vector<size_t> group_sizes_;  // groups at the front of copies_; ungrouped copies follow
  size_t in_groups_ = 0;
};

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

struct Extent3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Extent3() = default;
  constexpr Extent3(unsigned x_extent, unsigned y_extent = 1, unsigned z_extent = 1)
      : x(x_extent), y(y_extent), z(z_extent) {}
  uint64_t count() const { return uint64_t{x} * y * z; }
  Index3 at(uint64_t linear) const {
    return {static_cast<unsigned>(linear % x), static_cast<unsigned>(linear / x % y),
            static_cast<unsigned>(linear / x / y)};
  }
};

constexpr int kWarpSize = 32;
constexpr size_t kSlotBytes = 32;  // the most that a lane can hand to its warp at once

// The bytes that the lanes of a warp have handed in, by lane.
using WarpSlots = std::array<std::array<std::byte, kSlotBytes>, kWarpSize>;

struct GridRun {
  Extent3 grid, block;
  size_t shared_bytes = 0;
  uint64_t missing_blocks = 0;  // a fault: the last blocks do not run
};

class Block {
 public:
  // Runs `kernel` once for each thread of each block, blocks in random order. Throws Error on a deadlock, on threads
  // that wait at different barriers, on a write beyond the end of shared memory, and on a launch that a GPU would
  // refuse.
  static void run_grid(const GridRun& grid, const std::function<void()>& kernel);

  // The block of the calling thread; ContractError outside of a kernel.
  static Block& current();

  const Index3& thread_index() const { return running_->index; }
  const Index3& block_index() const { return block_index_; }
  const Extent3& block_extent() const { return extent_; }
  const Extent3& grid_extent() const { return grid_; }
  int lane() const { return running_->linear % kWarpSize; }
  std::byte* shared_memory() const { return shared_.data(); }
  AsyncCopies& copies() { return running_->copies; }  // of the calling thread

  // Waits until every thread of the block that has not returned is here.
  void barrier(const Site& site);
  // Hands in `bytes` at `value`, at most kSlotBytes, and waits for the lanes in `mask`. The result is valid until the
  // lane's next exchange with the same mask.
  const WarpSlots& exchange(unsigned mask, const void* value, size_t bytes, const Site& site);

 private:
  struct Thread {
    int linear = 0;
    Index3 index;
    Fiber* fiber = nullptr;  // null before it has started and after it has returned
    bool returned = false;
    const char* waits_for = nullptr;  // null: can run
    Site site;
    unsigned mask = 0;
    AsyncCopies copies;
  };
  struct WarpGroup {
    unsigned mask = 0, arrived = 0, turn = 0;
    Site site;
    std::array<WarpSlots, 2> slots;  // a lane may arrive at the next exchange while others still read this one
  };

  Block(const GridRun& grid, const std::function<void()>& kernel, uint64_t seed);
  void run(const Index3& block_index);
  Fiber* idle_fiber();
  void run_threads(Fiber* fiber);
  void wait(const char* what, const Site& site);
  void release_barrier_if_complete();
  WarpGroup& group_of(int warp, unsigned mask);
  [[noreturn]] void fail(const std::string& what) const;
  void report_deadlock() const;

  const Extent3 grid_, extent_;
  const std::function<void()>& kernel_;
  Random random_;
  SharedMemory shared_;
  Index3 block_index_;
  std::vector<Thread> threads_;
  Scheduler scheduler_;
  std::vector<std::vector<WarpGroup>> warps_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Thread* running_ = nullptr;
  int at_barrier_ = 0, returned_ = 0;
  Site barrier_site_;
  std::string failure_;
};

}  // namespace mantissa::cuda::emulation
