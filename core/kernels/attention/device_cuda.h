// Who computes attention on one GPU: another library's plan, made and checked at the first use of a shape, or our
// kernels.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "core/kernels/attention/engine_cuda.h"

namespace mantissa::cuda {

// Follows AttentionChoice of the stream. With kAuto the library is asked for forward passes only, whose workspace must
// not grow with T * T: whatever keeps it from computing a shape is said once in the log, and our kernels compute it.
// Backward passes are ours: the library's either give other bits in the next run or keep a T x T matrix per head. With
// kCudnn the library computes both passes, whatever workspace it wants - backward passes kReproducibleBackward if GEMMs
// are chosen kDeterministic - and what keeps it from that is a ConfigError.
//
// At the first use of a shape, outside of captured graphs, a plan is tried on made-up operands (attention_trial.h): the
// verdict depends on shape, device and library alone, and is the same on every rank, in every run, and whether or not
// later steps are captured. (Where device memory does not suffice for the trial, which takes some three times that of
// the pass, the plan is not used either, with a warning.) Of a plan that is refused nothing stays allocated.
class AttentionDevice {
 public:
  // `open` is called once, when the library is first wanted; Error, with the reason, if there is none.
  using Open = std::function<std::unique_ptr<AttentionEngine>()>;
  explicit AttentionDevice(Open open) : open_(std::move(open)) {}

  // Queue a pass if the library is to compute it; whether it was queued. Thread-safe.
  bool try_forward(const AttentionForwardArgs& args, const AttentionShape& extents, CudaStream& stream);
  bool try_backward(const AttentionBackwardArgs& args, const AttentionShape& extents, CudaStream& stream);

 private:
  struct Entry {
    std::unique_ptr<AttentionPlan> plan;  // null: our kernels
    bool checked = false;                 // the plan has stood the trial
  };

  template <typename Args>
  bool try_pass(AttentionPass pass, const Args& args, const AttentionShape& extents, CudaStream& stream);
  Entry make_entry(AttentionChoice choice, const AttentionKey& key);
  AttentionEngine* engine(AttentionChoice choice);

  std::mutex mutex_;  // of all below; held while a pass is queued
  Open open_;         // empty after its call
  std::unique_ptr<AttentionEngine> engine_;
  std::string missing_;  // why there is no engine
  std::map<std::pair<AttentionChoice, AttentionKey>, Entry> entries_;
};

}  // namespace mantissa::cuda
