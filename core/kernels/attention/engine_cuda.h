// Attention of another library than ours, as what chooses between the two sees it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/cuda/stream.h"
#include "core/kernels/attention/args.h"

namespace mantissa::cuda {

// kReproducibleBackward gives the same bits in every run, and may keep B * H * T * T gradients of scores for it;
// kBackward may give others in the next run, and is faster.
enum class AttentionPass : uint8_t { kForward, kBackward, kReproducibleBackward };

// What a plan is made for.
struct AttentionKey {
  AttentionPass pass = AttentionPass::kForward;
  DType dtype = DType::kBF16;
  AttentionShape shape{};

  auto operator<=>(const AttentionKey&) const = default;
};

class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;

  virtual size_t workspace_bytes() const = 0;
  // Queue the work on the stream; nothing is allocated or waited for. `workspace` is uninitialised device memory of
  // workspace_bytes(), 256-byte aligned. A plan has the pass that its key names. lse as in AttentionForwardArgs, so
  // that one pass may be a plan's and the other ours.
  virtual void forward(const AttentionForwardArgs& args, std::byte* workspace, CudaStream& stream) = 0;
  virtual void backward(const AttentionBackwardArgs& args, std::byte* workspace, CudaStream& stream) = 0;
};

// The library on one device, which is the calling thread's.
class AttentionEngine {
 public:
  virtual ~AttentionEngine() = default;

  // For 16-byte aligned bf16 or fp16 operands. Error, with the reason, if the library has no kernel.
  virtual std::unique_ptr<AttentionPlan> plan(const AttentionKey& key) = 0;
};

// cuDNN on the device `index`: never null; ConfigError, with the reason, where it cannot be used.
std::unique_ptr<AttentionEngine> open_attention_engine(int index);

}  // namespace mantissa::cuda
