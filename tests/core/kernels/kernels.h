// The kernels of the device under test, on its stream.
#pragma once

#include "tests/core/kernels/device_under_test.h"

namespace mantissa::kernel_test {

inline void fill(const Tensor& dst, float value) {
  device_under_test().backend().fill(dst, value, device_under_test().stream());
}
inline void cast(const CastArgs& args) { device_under_test().backend().cast(args, device_under_test().stream()); }
inline void split(const SplitArgs& args) { device_under_test().backend().split(args, device_under_test().stream()); }
inline void add(const AddArgs& args) { device_under_test().backend().add(args, device_under_test().stream()); }
inline void gemm(const GemmArgs& args) { device_under_test().backend().gemm(args, device_under_test().stream()); }
inline void column_sum(const ColumnSumArgs& args) {
  device_under_test().backend().column_sum(args, device_under_test().stream());
}
inline void embedding_forward(const EmbeddingForwardArgs& args) {
  device_under_test().backend().embedding_forward(args, device_under_test().stream());
}
inline void embedding_backward(const EmbeddingBackwardArgs& args) {
  device_under_test().backend().embedding_backward(args, device_under_test().stream());
}
inline void layer_norm_forward(const LayerNormForwardArgs& args) {
  device_under_test().backend().layer_norm_forward(args, device_under_test().stream());
}
inline void layer_norm_backward(const LayerNormBackwardArgs& args) {
  device_under_test().backend().layer_norm_backward(args, device_under_test().stream());
}
inline void rms_norm_forward(const RmsNormForwardArgs& args) {
  device_under_test().backend().rms_norm_forward(args, device_under_test().stream());
}
inline void rms_norm_backward(const RmsNormBackwardArgs& args) {
  device_under_test().backend().rms_norm_backward(args, device_under_test().stream());
}
inline void attention_forward(const AttentionForwardArgs& args) {
  device_under_test().backend().attention_forward(args, device_under_test().stream());
}
inline void attention_backward(const AttentionBackwardArgs& args) {
  device_under_test().backend().attention_backward(args, device_under_test().stream());
}
inline void gelu_forward(const GeluForwardArgs& args) {
  device_under_test().backend().gelu_forward(args, device_under_test().stream());
}
inline void gelu_backward(const GeluBackwardArgs& args) {
  device_under_test().backend().gelu_backward(args, device_under_test().stream());
}
inline void swiglu_forward(const SwigluForwardArgs& args) {
  device_under_test().backend().swiglu_forward(args, device_under_test().stream());
}
inline void swiglu_backward(const SwigluBackwardArgs& args) {
  device_under_test().backend().swiglu_backward(args, device_under_test().stream());
}
inline void rope(const RopeArgs& args) { device_under_test().backend().rope(args, device_under_test().stream()); }
inline void dropout(const DropoutArgs& args) {
  device_under_test().backend().dropout(args, device_under_test().stream());
}
inline void cross_entropy_forward(const CrossEntropyForwardArgs& args) {
  device_under_test().backend().cross_entropy_forward(args, device_under_test().stream());
}
inline void cross_entropy_backward(const CrossEntropyBackwardArgs& args) {
  device_under_test().backend().cross_entropy_backward(args, device_under_test().stream());
}
inline void tensor_stats(const TensorStatsArgs& args) {
  device_under_test().backend().tensor_stats(args, device_under_test().stream());
}
inline void adamw(const AdamWArgs& args) { device_under_test().backend().adamw(args, device_under_test().stream()); }
inline void sum_contributions(const SumContributionsArgs& args) {
  device_under_test().backend().sum_contributions(args, device_under_test().stream());
}
inline void record_verdict(const RecordVerdictArgs& args) {
  device_under_test().backend().record_verdict(args, device_under_test().stream());
}
inline void decide_update(const DecideUpdateArgs& args) {
  device_under_test().backend().decide_update(args, device_under_test().stream());
}
inline void amax(const AmaxArgs& args) { device_under_test().backend().amax(args, device_under_test().stream()); }
inline void tensor_scale(const TensorScaleArgs& args) {
  device_under_test().backend().tensor_scale(args, device_under_test().stream());
}
inline void quantize(const QuantizeArgs& args) {
  device_under_test().backend().quantize(args, device_under_test().stream());
}
inline void from_codes(const FromCodesArgs& args) {
  device_under_test().backend().from_codes(args, device_under_test().stream());
}
inline void hadamard(const HadamardArgs& args) {
  device_under_test().backend().hadamard(args, device_under_test().stream());
}
inline void delayed_scales(const DelayedScalesArgs& args) {
  device_under_test().backend().delayed_scales(args, device_under_test().stream());
}
inline void exponent_histogram(const ExponentHistogramArgs& args) {
  device_under_test().backend().exponent_histogram(args, device_under_test().stream());
}
inline void update_stagnation(const UpdateStagnationArgs& args) {
  device_under_test().backend().update_stagnation(args, device_under_test().stream());
}
inline void rounding_losses(const RoundingLossesArgs& args) {
  device_under_test().backend().rounding_losses(args, device_under_test().stream());
}
inline void compare(const CompareArgs& args) {
  device_under_test().backend().compare(args, device_under_test().stream());
}

}  // namespace mantissa::kernel_test
