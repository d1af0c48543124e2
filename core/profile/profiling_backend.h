// ProfilingBackend: a backend that tells a StepProfiler of every call before it hands it on.
#pragma once

#include "core/backend/backend.h"
#include "core/profile/step_profiler.h"

namespace mantissa {

class ProfilingBackend final : public Backend {
 public:
  // `profiler` must outlive the backend.
  ProfilingBackend(std::unique_ptr<Backend> backend, StepProfiler& profiler)
      : backend_(std::move(backend)), profiler_(profiler) {}

  Device device() const override { return backend_->device(); }
  std::string describe() const override { return backend_->describe(); }
  std::unique_ptr<Stream> create_stream() override { return backend_->create_stream(); }
  NarrowUnits narrow_units() const override { return backend_->narrow_units(); }
  std::string describe_narrow_units() const override { return backend_->describe_narrow_units(); }
  std::unique_ptr<OperandCache> make_operand_cache() override { return backend_->make_operand_cache(); }
  void set_gemm_options(const GemmOptions& options) override { backend_->set_gemm_options(options); }
  void set_attention_choice(AttentionChoice choice) override { backend_->set_attention_choice(choice); }
  // ConfigError: captured work passes no calls when it is repeated.
  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& body) override;

  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override { return backend_->allocate(bytes, what); }
  std::shared_ptr<Storage> reserve(size_t bytes) override { return backend_->reserve(bytes); }
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) override {
    return backend_->allocate_staging(bytes, what);
  }
  MemoryUse memory_use() const override { return backend_->memory_use(); }
  void copy(const Tensor& src, const Tensor& dst, Stream& stream) override;
  void upload(const void* host, const Tensor& dst, Stream& stream) override;
  void download(const Tensor& src, void* host, Stream& stream) override;
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
  void exponent_histogram(const ExponentHistogramArgs& args, Stream& stream) override;
  void update_stagnation(const UpdateStagnationArgs& args, Stream& stream) override;
  void rounding_losses(const RoundingLossesArgs& args, Stream& stream) override;
  void compare(const CompareArgs& args, Stream& stream) override;

 private:
  // Hands a call on. Without a recording its work is not even counted.
  template <typename Work, typename Call>
  void profiled(const char* name, Work work, Stream& stream, Call call);
  // A kernel, under the name of the caller.
  template <typename Args>
  void run(void (Backend::*kernel)(const Args&, Stream&), const Args& args, Stream& stream,
           const char* caller = __builtin_FUNCTION());

  const std::unique_ptr<Backend> backend_;
  StepProfiler& profiler_;
};

}  // namespace mantissa
