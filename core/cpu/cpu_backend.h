// The CPU backend: SIMD kernels (Google Highway, best instruction set at run time) on OpenMP threads, GEMM by oneDNN.
// Registered as "cpu". Streams are immediate: every call has finished when it returns.
#pragma once

#include "core/backend/backend.h"

namespace mantissa::cpu {

class CpuBackend final : public Backend {
 public:
  // Error when the CPU lacks the instruction set that the kernels need at least.
  explicit CpuBackend(int device_index);

  Device device() const override { return device_; }
  std::string describe() const override;
  std::unique_ptr<Stream> create_stream() override;
  std::unique_ptr<OperandCache> make_operand_cache() override;

  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override;
  std::shared_ptr<Storage> reserve(size_t bytes) override;
  MemoryUse memory_use() const override;
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) override { return allocate(bytes, what); }
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
  Device device_;
};

}  // namespace mantissa::cpu
