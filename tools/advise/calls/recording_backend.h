// RecordingBackend: computes nothing, as DryRunBackend, and tells of every call what it would have been.
#pragma once

#include <functional>
#include <string_view>

#include "core/backend/dry_run_backend.h"
#include "tools/advise/calls/kernel_call.h"

namespace mantissa {

class RecordingBackend final : public DryRunBackend {
 public:
  using Sink = std::function<void(KernelCall call)>;
  // `like` and `units`: see DryRunBackend. Nothing is told until phase() says where the step is.
  explicit RecordingBackend(Sink sink, Backend* like = nullptr, NarrowUnits units = NarrowUnits::kNone)
      : DryRunBackend(like, units), sink_(std::move(sink)) {}

  // What follows belongs to this phase, a string of static storage; "" for no step.
  void phase(std::string_view name) { phase_ = name; }

  // Addresses that nobody else has: which operands are the same memory is part of what a kernel costs.
  std::shared_ptr<Storage> reserve(size_t bytes) override;

  void copy(const Tensor& src, const Tensor& dst, Stream& stream) override;
  void upload(const void* host, const Tensor& dst, Stream& stream) override;
  void fill(const Tensor& dst, float value, Stream& stream) override;

  void cast(const CastArgs& args, Stream& stream) override;
  void split(const SplitArgs& args, Stream& stream) override;
  void add(const AddArgs& args, Stream& stream) override;
  void gemm(const GemmArgs& args, Stream& stream) override;
  void column_sum(const ColumnSumArgs& args, Stream& stream) override;
  void embedding_forward(const EmbeddingForwardArgs& args, Stream& stream) override;
  void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) override;
  void layer_norm_forward(const LayerNormForwardArgs& args, Stream& stream) override;
  void layer_norm_backward(const LayerNormBackwardArgs& args, Stream& stream) override;
  void rms_norm_forward(const RmsNormForwardArgs& args, Stream& stream) override;
  void rms_norm_backward(const RmsNormBackwardArgs& args, Stream& stream) override;
  void attention_forward(const AttentionForwardArgs& args, Stream& stream) override;
  void attention_backward(const AttentionBackwardArgs& args, Stream& stream) override;
  void gelu_forward(const GeluForwardArgs& args, Stream& stream) override;
  void gelu_backward(const GeluBackwardArgs& args, Stream& stream) override;
  void swiglu_forward(const SwigluForwardArgs& args, Stream& stream) override;
  void swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) override;
  void rope(const RopeArgs& args, Stream& stream) override;
  void dropout(const DropoutArgs& args, Stream& stream) override;
  void cross_entropy_forward(const CrossEntropyForwardArgs& args, Stream& stream) override;
  void cross_entropy_backward(const CrossEntropyBackwardArgs& args, Stream& stream) override;
  void tensor_stats(const TensorStatsArgs& args, Stream& stream) override;
  void record_verdict(const RecordVerdictArgs& args, Stream& stream) override;
  void decide_update(const DecideUpdateArgs& args, Stream& stream) override;
  void adamw(const AdamWArgs& args, Stream& stream) override;
  void sum_contributions(const SumContributionsArgs& args, Stream& stream) override;
  void amax(const AmaxArgs& args, Stream& stream) override;
  void tensor_scale(const TensorScaleArgs& args, Stream& stream) override;
  void quantize(const QuantizeArgs& args, Stream& stream) override;
  void from_codes(const FromCodesArgs& args, Stream& stream) override;
  void hadamard(const HadamardArgs& args, Stream& stream) override;
  void delayed_scales(const DelayedScalesArgs& args, Stream& stream) override;

 private:
  // A kernel, under the name of the caller.
  template <typename Args>
  void record(void (Backend::*kernel)(const Args&, Stream&), const Args& args,
              const char* caller = __builtin_FUNCTION());

  const Sink sink_;
  std::string_view phase_;
  uintptr_t next_address_ = uintptr_t{1} << 20;
};

}  // namespace mantissa
