// The CUDA backend: memory and kernels of one GPU. The same class drives a real GPU and the emulated one; which it is
// depends on the libraries that are linked.
#pragma once

#include "core/backend/backend.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/runtime.h"
#include "core/cuda/staging.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

class CudaBackend final : public Backend {
 public:
  // ConfigError if there is no such device, or its architecture is not among those that the kernels were compiled for.
  explicit CudaBackend(int device_index);

  Device device() const override { return device_; }
  std::string describe() const override;
  std::unique_ptr<Stream> create_stream() override;
  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& body) override;
  void set_gemm_options(const GemmOptions& options) override { gemm_options_ = options; }
  NarrowUnits narrow_units() const override;
  std::string describe_narrow_units() const override;
  void set_attention_choice(AttentionChoice choice) override { attention_choice_ = choice; }

  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override;
  std::shared_ptr<Storage> reserve(size_t bytes) override;
  MemoryUse memory_use() const override { return {memory_->held_bytes(), memory_->peak_bytes()}; }
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) override;
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
  const Device device_;
  const DeviceProperties properties_;
  std::shared_ptr<DeviceMemory> memory_;
  CudaStream set_up_;  // zeroes new memory
  Staging staging_;
  GemmOptions gemm_options_;
  AttentionChoice attention_choice_ = AttentionChoice::kAuto;
};

}  // namespace mantissa::cuda
