// Attention of another library (cuDNN) on one GPU, our kernels, and the choice between them.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/cuda/stream.h"
#include "core/kernels/attention/args.h"

namespace mantissa::cuda {

// kReproducibleBackward gives the same bits in every run, and may keep B * H * T * T gradients of scores for it.
// kBackward may give other bits in the next run, and is faster.
enum class AttentionPass : uint8_t { kForward, kBackward, kReproducibleBackward };

enum class Documents : uint8_t { kNone, kGiven };

// The computation that a plan is made for.
struct AttentionKey {
  AttentionPass pass = AttentionPass::kForward;
  DType dtype = DType::kBF16;
  AttentionShape shape{};
  Documents documents = Documents::kNone;

  auto operator<=>(const AttentionKey&) const = default;
};

class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;

  virtual size_t workspace_bytes() const = 0;
  // Both queue the work on the stream, without allocating or waiting. `workspace` is uninitialised device memory of
  // workspace_bytes(), 256-byte aligned. A plan has only the pass of its key. lse is as in AttentionForwardArgs: the
  // library may compute one pass and our kernels the other.
  virtual void run(const AttentionForwardArgs& args, std::byte* workspace, CudaStream& stream) = 0;
  virtual void run(const AttentionBackwardArgs& args, std::byte* workspace, CudaStream& stream) = 0;
};

// The library on the calling thread's device.
class AttentionEngine {
 public:
  virtual ~AttentionEngine() = default;

  // For 16-byte aligned bf16 or fp16 operands. Throws Error with the reason if the library has no kernel.
  virtual std::unique_ptr<AttentionPlan> plan(const AttentionKey& key) = 0;
};

// cuDNN on the device `index`; never null. Throws ConfigError with the reason if it cannot be used.
std::unique_ptr<AttentionEngine> open_attention_engine(int index);
// attention_cudnn.cc sets this when it is linked into the program.
inline std::unique_ptr<AttentionEngine> (*open_cudnn_attention)(int index) = nullptr;

// Follows AttentionChoice of the stream. With kAuto the library computes forward passes only, and its workspace must
// not grow with T * T. If the library cannot compute a shape, or is not asked to, as for windows and documents, the log
// says so once and our kernels compute it. Our kernels compute backward passes: the library's either give other bits in
// the next run or keep a T x T matrix per head. With kCudnn the library computes both passes, with any workspace.
// Backward passes are kReproducibleBackward if GEMMs are chosen kDeterministic. If the library cannot compute a shape,
// that is a ConfigError.
//
// At the first use of a shape, outside of captured graphs, a plan is tried on generated operands (trial_cuda.h). The
// verdict depends on shape, device and library only. It is the same on every rank, in every run, and whether or not
// later steps are captured. The trial takes about three times the device memory of the pass; if that does not suffice,
// the plan is not used either, with a warning. A rejected plan keeps no memory.
class AttentionDevice {
 public:
  // `open` is called once, when the library is first wanted. It throws Error with the reason if there is none.
  using Open = std::function<std::unique_ptr<AttentionEngine>()>;
  explicit AttentionDevice(Open open) : open_(std::move(open)) {}

  // Queue a pass if the library is to compute it, and return whether it was queued. Thread-safe.
  bool try_forward(const AttentionForwardArgs& args, CudaStream& stream);
  bool try_backward(const AttentionBackwardArgs& args, CudaStream& stream);

 private:
  struct Entry {
    std::unique_ptr<AttentionPlan> plan;  // null: our kernels
    bool checked = false;                 // the plan has passed the trial
  };

  template <typename Args>
  bool try_pass(AttentionPass pass, const Args& args, CudaStream& stream);
  Entry make_entry(AttentionChoice choice, const AttentionKey& key);
  AttentionEngine* engine(AttentionChoice choice);

  std::mutex mutex_;  // of all below; held while a pass is queued
  Open open_;         // empty after its call
  std::unique_ptr<AttentionEngine> engine_;
  std::string missing_;  // the reason that there is no engine
  std::map<std::pair<AttentionChoice, AttentionKey>, Entry> entries_;
};

// ---- Our kernels: the choice between tensor cores (mma) and fp32 arithmetic (simt).

void own_attention_forward(const AttentionForwardArgs& args, CudaStream& stream);
void own_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream);

// Whether the operands fit tensor cores: bf16 or fp16, tensors and rows 16-byte aligned, head_dim <= 128, and scale >
// 0, so that the largest score has the largest exponent.
bool fits_tensor_cores(const AttentionForwardArgs& args);
bool fits_tensor_cores(const AttentionBackwardArgs& args);

// Terms of the backward pass for each query, computed once. Both are (B, H, padded_length). The padding represents
// queries that see nothing: their probabilities are 0.
struct AttentionRowTerms {
  float* log2_sums;  // lse / log(2); +Inf in the padding
  float* deltas;     // rowsum(out * d_out); 0 in the padding
  int64_t padded_length;

  constexpr int64_t offset(const AttentionShape& shape, int64_t b, int64_t head, int64_t t) const {
    return (b * shape.num_heads + head) * padded_length + t;
  }
};

// Lengths are padded to a multiple of this, so that kernels read whole, aligned blocks.
constexpr int64_t kRowTermsBlock = 128;

// In the stream's workspace.
AttentionRowTerms attention_row_terms(const AttentionBackwardArgs& args, CudaStream& stream);

// These need fits_tensor_cores().
void attention_forward_mma(const AttentionForwardArgs& args, CudaStream& stream);
void attention_backward_mma(const AttentionBackwardArgs& args, const AttentionRowTerms& terms, CudaStream& stream);

// These take any float dtype, alignment, head_dim and scale.
void attention_forward_simt(const AttentionForwardArgs& args, CudaStream& stream);
void attention_backward_simt(const AttentionBackwardArgs& args, const AttentionRowTerms& terms, CudaStream& stream);

}  // namespace mantissa::cuda
