#include "core/cuda/emulation/scheduler.h"

#include <sys/mman.h>

#include <algorithm>
#include <boost/context/detail/fcontext.hpp>
#include <new>
#include <numeric>

// Defined by the address sanitizer's runtime, absent without it.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t bytes);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* data, size_t bytes);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace mantissa::cuda::emulation {
namespace {

namespace context = boost::context::detail;

constexpr size_t kStackBytes = size_t{256} << 10;  // taken page by page, as it is used
constexpr size_t kGuardBytes = 4096;
constexpr size_t kRegionBytes = kGuardBytes + kStackBytes;

// Stacks of ended fibers of this host thread, for its next launch: mapping them anew takes as long as a small kernel.
// At most 1024, the threads of a block; they keep the pages that they have touched until the host thread ends.
class FreeRegions {
 public:
  ~FreeRegions() {
    for (std::byte* region : regions_) munmap(region, kRegionBytes);
  }
  std::byte* take() {
    if (!regions_.empty()) {
      std::byte* const region = regions_.back();
      regions_.pop_back();
      return region;
    }
    void* const region = mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (region == MAP_FAILED) throw std::bad_alloc();
    mprotect(region, kGuardBytes, PROT_NONE);
    return static_cast<std::byte*>(region);
  }
  void give(std::byte* region) { regions_.push_back(region); }

 private:
  std::vector<std::byte*> regions_;
};

thread_local FreeRegions free_regions;

void leave_stack(void** fake_stack, const void* bottom, size_t bytes) {
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}

void arrive_on_stack(void* fake_stack, const void** bottom, size_t* bytes) {
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
}

constexpr int kWarp = 32;

size_t warp_of(int thread) { return static_cast<size_t>(thread / kWarp); }

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), region_(free_regions.take()) {
  inside_ = context::make_fcontext(region_ + kRegionBytes, kStackBytes, [](context::transfer_t from) {
    Fiber& self = *static_cast<Fiber*>(from.data);
    self.outside_ = from.fctx;
    arrive_on_stack(nullptr, &self.outer_stack_, &self.outer_stack_bytes_);
    self.body_();
    self.suspend();
  });
}

Fiber::~Fiber() {
  // Address sanitizer has marked the frames that were left on the stack; the next owner of these addresses must not
  // inherit that.
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(region_ + kGuardBytes, kStackBytes);
  free_regions.give(region_);
}

void Fiber::resume() {
  void* fake_stack = nullptr;
  leave_stack(&fake_stack, region_ + kGuardBytes, kStackBytes);
  inside_ = context::jump_fcontext(inside_, this).fctx;
  arrive_on_stack(fake_stack, nullptr, nullptr);
}

void Fiber::suspend() {
  leave_stack(&inner_fake_stack_, outer_stack_, outer_stack_bytes_);
  outside_ = context::jump_fcontext(outside_, this).fctx;
  arrive_on_stack(inner_fake_stack_, &outer_stack_, &outer_stack_bytes_);
}

Scheduler::Scheduler(int threads) : threads_(threads), ready_(warp_of(threads - 1) + 1) {}

void Scheduler::begin_block(Random& random) {
  policy_ = random.below(2) == 0 ? Policy::kEven : Policy::kEager;
  for (auto& warp : ready_) warp.clear();
  ready_count_ = 0;
  unstarted_.resize(static_cast<size_t>(threads_));
  std::iota(unstarted_.begin(), unstarted_.end(), 0);
  random.shuffle(unstarted_);
  if (policy_ == Policy::kEven) return;
  std::vector<size_t> places(ready_.size());
  std::iota(places.begin(), places.end(), 0);
  random.shuffle(places);
  std::stable_sort(unstarted_.begin(), unstarted_.end(),
                   [&](int a, int b) { return places[warp_of(a)] < places[warp_of(b)]; });
  warp_ = warp_of(unstarted_.back());
}

void Scheduler::add_ready(int thread) {
  ready_[warp_of(thread)].push_back(thread);
  ++ready_count_;
}

int Scheduler::take_ready(size_t warp, size_t index) {
  std::vector<int>& ready = ready_[warp];
  const int thread = ready[index];
  ready[index] = ready.back();
  ready.pop_back();
  --ready_count_;
  warp_ = warp;
  return thread;
}

int Scheduler::next(Random& random) {
  if (policy_ == Policy::kEager) {
    if (!ready_[warp_].empty()) return take_ready(warp_, random.below(ready_[warp_].size()));
    if (!unstarted_.empty() && warp_of(unstarted_.back()) == warp_) return kStartOne;
  }
  const size_t choices = ready_count_ + (unstarted_.empty() ? 0 : 1);
  if (choices == 0) return kNobody;
  size_t choice = random.below(choices);
  if (choice == ready_count_) return kStartOne;
  size_t warp = 0;
  for (; choice >= ready_[warp].size(); ++warp) choice -= ready_[warp].size();
  return take_ready(warp, choice);
}

int Scheduler::take_unstarted() {
  if (unstarted_.empty()) return kNobody;
  const int thread = unstarted_.back();
  unstarted_.pop_back();
  warp_ = warp_of(thread);
  return thread;
}

}  // namespace mantissa::cuda::emulation
