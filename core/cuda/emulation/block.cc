#include "core/cuda/emulation/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "core/base/check.h"
#include "core/base/round_up.h"

// Defined by the address sanitizer's runtime, absent without it.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* data, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* data, size_t bytes);
}

namespace mantissa::cuda::emulation {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr int kNan = 0xff;  // a value of this byte throughout is NaN in every floating-point format

thread_local Block* current_block = nullptr;
uint64_t launches = 0;

void require_launchable(const GridRun& run) {
  const auto& [grid, block, shared_bytes, missing_blocks] = run;
  constexpr size_t kMaxSharedBytes = size_t{227} << 10;  // per block on compute capability 9.0
  MANTISSA_CHECK(grid.count() > 0 && block.count() > 0, "[emulation] a launch needs at least one block and one thread");
  MANTISSA_CHECK(block.count() <= 1024 && block.z <= 64, "[emulation] a block has at most 1024 threads, got {}x{}x{}",
                 block.x, block.y, block.z);
  MANTISSA_CHECK(grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535,
                 "[emulation] a grid is at most 2^31-1 x 65535 x 65535 blocks, got {}x{}x{}", grid.x, grid.y, grid.z);
  MANTISSA_CHECK(shared_bytes <= kMaxSharedBytes, "[emulation] a block has at most {} bytes of shared memory, got {}",
                 kMaxSharedBytes, shared_bytes);
}

}  // namespace

SharedMemory::SharedMemory(size_t bytes) : bytes_(bytes), mapped_bytes_(round_up(bytes, kPageBytes) + kPageBytes) {
  void* const region = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) throw std::bad_alloc();
  region_ = static_cast<std::byte*>(region);
  guard_ = region_ + mapped_bytes_ - kPageBytes;
  data_ = guard_ - round_up(bytes, kSharedAlignmentBytes);
  mprotect(guard_, kPageBytes, PROT_NONE);
  std::memset(data_ + bytes_, kNan, padding());
  if (__asan_poison_memory_region) __asan_poison_memory_region(data_ + bytes_, padding());
}

SharedMemory::~SharedMemory() {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(data_ + bytes_, padding());
  munmap(region_, mapped_bytes_);
}

void SharedMemory::clear() { std::memset(data_, kNan, bytes_); }

bool SharedMemory::end_is_intact() const {
  if (__asan_poison_memory_region) return true;  // it would have ended the program, and permits no read here
  return std::all_of(data_ + bytes_, guard_, [](std::byte b) { return b == std::byte{kNan}; });
}

void AsyncCopies::start(void* to, const void* from, size_t bytes) {
  std::memset(to, 0xff, bytes);
  copies_.push_back({to, from, bytes});
}

void AsyncCopies::commit() {
  group_sizes_.push_back(copies_.size() - in_groups_);
  in_groups_ = copies_.size();
}

void AsyncCopies::wait(size_t pending) {
  if (group_sizes_.size() <= pending) return;
  const auto groups_end = group_sizes_.end() - static_cast<ptrdiff_t>(pending);
  size_t landing = 0;
  for (auto size = group_sizes_.begin(); size != groups_end; ++size) landing += *size;
  for (size_t i = 0; i < landing; ++i) {
    const Copy& copy = copies_[i];
    copy.from == nullptr ? std::memset(copy.to, 0, copy.bytes) : std::memcpy(copy.to, copy.from, copy.bytes);
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<ptrdiff_t>(landing));
  group_sizes_.erase(group_sizes_.begin(), groups_end);
  in_groups_ -= landing;
}

void Block::run_grid(const GridRun& grid, const std::function<void()>& kernel) {
  require_launchable(grid);
  MANTISSA_CHECK(current_block == nullptr, "[emulation] a kernel cannot launch a kernel");
  Block state(grid, kernel, seed() * 0x9e3779b97f4a7c15u + ++launches);
  std::vector<uint64_t> order(grid.grid.count() - std::min(grid.grid.count(), grid.missing_blocks));
  std::iota(order.begin(), order.end(), 0);
  state.random_.shuffle(order);
  current_block = &state;
  try {
    for (const uint64_t index : order) state.run(grid.grid.at(index));
  } catch (...) {
    current_block = nullptr;
    throw;
  }
  current_block = nullptr;
}

Block& Block::current() {
  MANTISSA_CHECK(current_block != nullptr, "[emulation] a device function was called outside of a kernel");
  return *current_block;
}

Block::Block(const GridRun& grid, const std::function<void()>& kernel, uint64_t seed)
    : grid_(grid.grid),
      extent_(grid.block),
      kernel_(kernel),
      random_(seed),
      shared_(grid.shared_bytes),
      scheduler_(static_cast<int>(grid.block.count())) {
  threads_.resize(extent_.count());
  warps_.resize((extent_.count() + kWarpSize - 1) / kWarpSize);
}

void Block::run(const Index3& block_index) {
  block_index_ = block_index;
  shared_.clear();
  for (auto& groups : warps_) groups.clear();
  scheduler_.begin_block(random_);
  at_barrier_ = returned_ = 0;
  for (size_t i = 0; i < threads_.size(); ++i) {
    threads_[i] = {.linear = static_cast<int>(i), .index = extent_.at(i), .site = {}, .copies = {}};
  }
  while (returned_ < static_cast<int>(threads_.size())) {
    const int chosen = scheduler_.next(random_);
    if (chosen == Scheduler::kNobody) report_deadlock();
    Fiber* fiber = nullptr;
    if (chosen == Scheduler::kStartOne) {
      fiber = idle_fiber();
    } else {
      running_ = &threads_[static_cast<size_t>(chosen)];
      fiber = running_->fiber;
    }
    fiber->resume();
    if (!failure_.empty()) fail(failure_);
  }
  if (!shared_.end_is_intact())
    fail(fmt::format("[emulation] a write beyond {} bytes of shared memory", shared_.bytes()));
}

Fiber* Block::idle_fiber() {
  if (idle_.empty()) {
    fibers_.push_back(nullptr);
    const size_t slot = fibers_.size() - 1;
    fibers_[slot] = std::make_unique<Fiber>([this, slot] { run_threads(fibers_[slot].get()); });
    return fibers_[slot].get();
  }
  Fiber* fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

// The body of a fiber: runs one thread after the other. Threads that never wait share a fiber, without a switch.
void Block::run_threads(Fiber* fiber) {
  for (;;) {
    const int unstarted = scheduler_.take_unstarted();
    if (unstarted == Scheduler::kNobody) {
      idle_.push_back(fiber);
      fiber->suspend();
      continue;
    }
    Thread& thread = threads_[static_cast<size_t>(unstarted)];
    thread.fiber = fiber;
    running_ = &thread;
    try {
      kernel_();
    } catch (const std::exception& error) {  // an exception must not unwind out of a fiber
      failure_ = error.what();
      fiber->suspend();
    }
    thread.fiber = nullptr;
    thread.returned = true;
    ++returned_;
    release_barrier_if_complete();
  }
}

void Block::wait(const char* what, const Site& site) {
  Thread& self = *running_;
  self.waits_for = what;
  self.site = site;
  self.fiber->suspend();
  running_ = &self;
}

void Block::barrier(const Site& site) {
  note_wait_site(site);
  if (faults().skipped_wait == site) return;
  if (at_barrier_ > 0 && !(barrier_site_ == site)) {
    throw Error(ExitCode::kInternal,
                fmt::format("[emulation] threads of one block wait at different barriers: {} and {}",
                            barrier_site_.text(), site.text()));
  }
  barrier_site_ = site;
  ++at_barrier_;
  Thread& self = *running_;
  self.waits_for = "barrier";
  self.site = site;
  release_barrier_if_complete();  // the last thread to arrive is drawn like the others
  self.fiber->suspend();
  running_ = &self;
}

void Block::release_barrier_if_complete() {
  if (at_barrier_ == 0 || at_barrier_ + returned_ < static_cast<int>(threads_.size())) return;
  for (Thread& thread : threads_) {
    if (thread.returned || thread.fiber == nullptr) continue;
    thread.waits_for = nullptr;
    scheduler_.add_ready(thread.linear);
  }
  at_barrier_ = 0;
}

Block::WarpGroup& Block::group_of(int warp, unsigned mask) {
  auto& groups = warps_[static_cast<size_t>(warp)];
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const WarpGroup& g) { return g.mask == mask; });
  if (found != groups.end()) return *found;
  groups.reserve(kWarpSize);  // references stay valid: more than 32 different masks in one warp are refused
  MANTISSA_CHECK(groups.size() < kWarpSize, "[emulation] a warp uses more than {} different masks", kWarpSize);
  WarpGroup& group = groups.emplace_back();
  group.mask = mask;
  return group;
}

const WarpSlots& Block::exchange(unsigned mask, const void* value, size_t bytes, const Site& site) {
  note_wait_site(site);
  Thread& self = *running_;
  const int warp = self.linear / kWarpSize, lane = self.linear % kWarpSize;
  MANTISSA_CHECK(bytes <= kSlotBytes, "[emulation] a lane can hand over {} bytes, got {}", kSlotBytes, bytes);
  MANTISSA_CHECK(mask >> lane & 1u, "[emulation] lane {} is not in its own mask {:#x} at {}", lane, mask, site.text());
  WarpGroup& group = group_of(warp, mask);
  const auto hand_in = [&]() -> WarpSlots& {
    WarpSlots& slots = group.slots[group.turn % 2];
    if (bytes > 0) std::memcpy(slots[static_cast<size_t>(lane)].data(), value, bytes);
    return slots;
  };
  if (faults().skipped_wait == site) return hand_in();  // takes what the others have handed in so far
  if (group.arrived != 0 && !(group.site == site)) {
    throw Error(ExitCode::kInternal, fmt::format("[emulation] lanes of one warp meet at different places: {} and {}",
                                                 group.site.text(), site.text()));
  }
  group.site = site;
  WarpSlots& slots = hand_in();
  group.arrived |= 1u << lane;
  self.mask = mask;
  if (group.arrived == mask) {
    group.arrived = 0;
    ++group.turn;
    for (int other = 0; other < kWarpSize; ++other) {
      const size_t linear = static_cast<size_t>(warp * kWarpSize + other);
      if (!(mask >> other & 1u) || other == lane) continue;
      threads_[linear].waits_for = nullptr;
      scheduler_.add_ready(static_cast<int>(linear));
    }
    return slots;
  }
  wait("warp", site);
  return slots;
}

void Block::fail(const std::string& what) const {
  throw Error(ExitCode::kInternal, fmt::format("{} (block {}, {}, {}; seed {})", what, block_index_.x, block_index_.y,
                                               block_index_.z, seed()));
}

void Block::report_deadlock() const {
  std::string text;
  int listed = 0;
  for (const Thread& thread : threads_) {
    if (thread.returned || thread.waits_for == nullptr || ++listed > 8) continue;
    text += fmt::format("; thread {} at the {} in {}", thread.linear, thread.waits_for, thread.site.text());
    if (thread.mask != 0 && std::strcmp(thread.waits_for, "warp") == 0)
      text += fmt::format(" (mask {:#x})", thread.mask);
  }
  fail(fmt::format("[emulation] deadlock: {} of {} threads have returned, the others wait{}", returned_,
                   threads_.size(), text));
}

}  // namespace mantissa::cuda::emulation
