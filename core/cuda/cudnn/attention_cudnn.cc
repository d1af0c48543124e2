// cuDNN attention on one GPU: owns the library handle and binds the tensors of Backend calls to plans.
#include <fmt/core.h>

#include <limits>

#include "core/base/round_up.h"
#include "core/cuda/cudnn/attention_graph.h"
#include "core/cuda/cudnn/plan.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {
namespace {

constexpr size_t kAlignmentBytes = 256;

size_t padded(int64_t bytes) { return round_up(static_cast<size_t>(bytes), kAlignmentBytes); }

// Uses the engine's handle: the engine outlives its plans.
class CudnnAttentionPlan final : public AttentionPlan {
 public:
  CudnnAttentionPlan(const Cudnn& library, cudnnHandle_t handle, const AttentionKey& key)
      : library_(library),
        handle_(handle),
        key_(key),
        plan_(library, {.handle = handle},
              key.pass == AttentionPass::kForward ? attention_forward_graph(library, key)
                                                  : attention_backward_graph(library, key)) {}

  size_t workspace_bytes() const override {
    return delta_bytes() + d_queries_sum_bytes() + padded(plan_.workspace_bytes());
  }

  void forward(const AttentionForwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    CudnnPlan::Bindings bindings;
    bind_views(bindings, args.qkv, {kQueries, kKeys, kValues});
    bindings.bind(kOut, args.out.raw());
    bindings.bind(kLse, args.lse.raw());
    run(bindings, args.shape.scale, workspace, stream);
  }

  void backward(const AttentionBackwardArgs& args, std::byte* workspace, CudaStream& stream) override {
    CudnnPlan::Bindings bindings;
    bind_views(bindings, args.qkv, {kQueries, kKeys, kValues});
    bind_views(bindings, args.d_qkv, {kDQueries, kDKeys, kDValues});
    bindings.bind(kOut, args.out.raw());
    bindings.bind(kDOut, args.d_out.raw());
    bindings.bind(kLse, args.lse.raw());
    bindings.bind(kDelta, workspace);
    workspace += delta_bytes();
    if (d_queries_sum_bytes() > 0) {
      set_bytes_async(workspace, 0, d_queries_sum_bytes(), stream.handle());  // cuDNN only adds to it
      bindings.bind(kDQueriesSum, workspace);
    }
    workspace += d_queries_sum_bytes();
    float one = 1.0f;
    bindings.bind(kOne, &one);
    run(bindings, args.shape.scale, workspace, stream);
  }

 private:
  int64_t rows() const { return key_.shape.batch * key_.shape.num_heads * key_.shape.sequence_length; }
  size_t delta_bytes() const {
    return key_.pass == AttentionPass::kForward ? 0 : padded(rows() * static_cast<int64_t>(sizeof(float)));
  }
  size_t d_queries_sum_bytes() const {
    return key_.pass == AttentionPass::kBackward ? padded(rows() * key_.shape.head_dim * static_cast<int64_t>(sizeof(float)))
                                                 : 0;
  }

  // Binds the queries, keys and values in a packed tensor.
  void bind_views(CudnnPlan::Bindings& bindings, const Tensor& packed, std::array<AttentionTensor, 3> to) const {
    auto* data = static_cast<std::byte*>(packed.raw());
    const int64_t head_bytes = key_.shape.head_dim * static_cast<int64_t>(size_bytes(key_.dtype));
    bindings.bind(to[0], data);
    bindings.bind(to[1], data + key_.shape.num_heads * head_bytes);
    bindings.bind(to[2], data + (key_.shape.num_heads + key_.shape.num_kv_heads) * head_bytes);
  }

  void run(CudnnPlan::Bindings& bindings, float scale, std::byte* workspace, CudaStream& stream) const {
    float masked_score = -std::numeric_limits<float>::infinity();
    bindings.bind(kScale, &scale);
    if (key_.shape.mask == Mask::kCausal) bindings.bind(kMaskedScore, &masked_score);
    check_cudnn(library_, library_.set_stream(handle_, stream.handle()), "cudnnSetStream");
    plan_.run(handle_, bindings, workspace);
  }

  const Cudnn& library_;
  const cudnnHandle_t handle_;
  const AttentionKey key_;
  const CudnnPlan plan_;
};

class CudnnAttention final : public AttentionEngine {
 public:
  CudnnAttention(const Cudnn& library, int index) : library_(library) {
    // Other devices have other cuDNN engines, for which these graphs were never checked.
    const DeviceProperties device = device_properties(index);
    if (device.major != 8 && device.major != 9) {
      throw ConfigError(fmt::format("cuDNN's attention is used on compute capability 8 and 9, not on {}.{} ({})",
                                    device.major, device.minor, device.name));
    }
    set_device(index);
    check_cudnn(library_, library_.create(&handle_), "cudnnCreate");
  }
  ~CudnnAttention() override { library_.destroy(handle_); }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  std::unique_ptr<AttentionPlan> plan(const AttentionKey& key) override {
    return std::make_unique<CudnnAttentionPlan>(library_, handle_, key);
  }

 private:
  const Cudnn& library_;
  cudnnHandle_t handle_ = nullptr;
};

}  // namespace

std::unique_ptr<AttentionEngine> open_attention_engine(int index) {
  return std::make_unique<CudnnAttention>(cudnn(), index);
}

}  // namespace mantissa::cuda
