#include "core/cuda/emulation/fiber.h"

#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <new>
#include <vector>

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

}  // namespace mantissa::cuda::emulation
