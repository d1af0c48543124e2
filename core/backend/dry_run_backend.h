// DryRunBackend: runs no kernel and touches no memory, so that a model's forward and backward pass can be walked
// through to learn how much memory a step will take, exactly and before anything is allocated. Who wants to know more of
// a walk derives from it.
#pragma once

#include "core/backend/backend.h"

namespace mantissa {

class DryRunBackend : public Backend {
 public:
  // Operands are cached as `like` would, which must outlive the object; not at all with nullptr. Products of 8-bit
  // operands are multiplied by `units`.
  explicit DryRunBackend(Backend* like = nullptr, NarrowUnits units = NarrowUnits::kNone)
      : like_(like), units_(units) {}

  Device device() const override { return {}; }
  std::string describe() const override { return "dry run"; }
  std::unique_ptr<Stream> create_stream() override;
  NarrowUnits narrow_units() const override { return units_; }
  std::unique_ptr<OperandCache> make_operand_cache() override { return like_ ? like_->make_operand_cache() : nullptr; }

  // These give address space that must not be read: pointers into it only mark places.
  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override;
  std::shared_ptr<Storage> reserve(size_t bytes) override;
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char*) override { return reserve(bytes); }
  MemoryUse memory_use() const override { return {allocated_bytes_, allocated_bytes_}; }  // sum over allocate()

  void copy(const Tensor&, const Tensor&, Stream&) override {}
  void upload(const void*, const Tensor&, Stream&) override {}
  void download(const Tensor& src, void* host, Stream&) override;  // zeros
  void fill(const Tensor&, float, Stream&) override {}

  void cast(const CastArgs&, Stream&) override {}
  void split(const SplitArgs&, Stream&) override {}
  void add(const AddArgs&, Stream&) override {}
  void gemm(const GemmArgs& args, Stream&) override {
    if (args.b_cache != nullptr) args.b_cache->plan(args);
  }
  void column_sum(const ColumnSumArgs&, Stream&) override {}
  void embedding_forward(const EmbeddingForwardArgs&, Stream&) override {}
  void embedding_backward(const EmbeddingBackwardArgs&, Stream&) override {}
  void layer_norm_forward(const LayerNormForwardArgs&, Stream&) override {}
  void layer_norm_backward(const LayerNormBackwardArgs&, Stream&) override {}
  void rms_norm_forward(const RmsNormForwardArgs&, Stream&) override {}
  void rms_norm_backward(const RmsNormBackwardArgs&, Stream&) override {}
  void attention_forward(const AttentionForwardArgs&, Stream&) override {}
  void attention_backward(const AttentionBackwardArgs&, Stream&) override {}
  void gelu_forward(const GeluForwardArgs&, Stream&) override {}
  void gelu_backward(const GeluBackwardArgs&, Stream&) override {}
  void swiglu_forward(const SwigluForwardArgs&, Stream&) override {}
  void swiglu_backward(const SwigluBackwardArgs&, Stream&) override {}
  void rope(const RopeArgs&, Stream&) override {}
  void dropout(const DropoutArgs&, Stream&) override {}
  void cross_entropy_forward(const CrossEntropyForwardArgs&, Stream&) override {}
  void cross_entropy_backward(const CrossEntropyBackwardArgs&, Stream&) override {}
  void tensor_stats(const TensorStatsArgs&, Stream&) override {}
  void record_verdict(const RecordVerdictArgs&, Stream&) override {}
  void decide_update(const DecideUpdateArgs&, Stream&) override {}
  void adamw(const AdamWArgs&, Stream&) override {}
  void sum_contributions(const SumContributionsArgs&, Stream&) override {}
  void amax(const AmaxArgs&, Stream&) override {}
  void tensor_scale(const TensorScaleArgs&, Stream&) override {}
  void quantize(const QuantizeArgs&, Stream&) override {}
  void from_codes(const FromCodesArgs&, Stream&) override {}
  void hadamard(const HadamardArgs&, Stream&) override {}
  void delayed_scales(const DelayedScalesArgs&, Stream&) override {}
  void exponent_histogram(const ExponentHistogramArgs&, Stream&) override {}
  void update_stagnation(const UpdateStagnationArgs&, Stream&) override {}
  void rounding_losses(const RoundingLossesArgs&, Stream&) override {}
  void compare(const CompareArgs&, Stream&) override {}

 private:
  Backend* const like_;
  const NarrowUnits units_;
  size_t allocated_bytes_ = 0;
};

}  // namespace mantissa
