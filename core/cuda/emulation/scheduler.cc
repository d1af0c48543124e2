#include "core/cuda/emulation/scheduler.h"

#include <algorithm>
#include <numeric>

namespace mantissa::cuda::emulation {
namespace {

constexpr int kWarp = 32;

size_t warp_of(int thread) { return static_cast<size_t>(thread / kWarp); }

}  // namespace

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
