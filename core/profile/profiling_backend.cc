#include "core/profile/profiling_backend.h"

#include "core/base/error.h"

namespace mantissa {

template <typename Work, typename Call>
void ProfilingBackend::profiled(const char* name, Work work, Stream& stream, Call call) {
  if (!profiler_.recording()) return call();
  const StepProfiler::Op op(profiler_, name, work(), &stream);
  call();
}

template <typename Args>
void ProfilingBackend::run(void (Backend::*kernel)(const Args&, Stream&), const Args& args, Stream& stream,
                           const char* caller) {
  profiled(
      caller, [&] { return work_of(args); }, stream, [&] { (*backend_.*kernel)(args, stream); });
}

std::unique_ptr<CapturedWork> ProfilingBackend::capture(Stream&, const std::function<void()>&) {
  throw ConfigError(
      "profile: true cannot look into captured work, which passes no kernel calls when it is repeated: "
      "give profile=false or cuda.graph=false");
}

void ProfilingBackend::copy(const Tensor& src, const Tensor& dst, Stream& stream) {
  profiled(
      "copy", [&] { return work_of_copy(src, dst); }, stream, [&] { backend_->copy(src, dst, stream); });
}
void ProfilingBackend::upload(const void* host, const Tensor& dst, Stream& stream) {
  profiled(
      "upload", [&] { return work_of_transfer(dst); }, stream, [&] { backend_->upload(host, dst, stream); });
}
void ProfilingBackend::download(const Tensor& src, void* host, Stream& stream) {
  profiled(
      "download", [&] { return work_of_transfer(src); }, stream, [&] { backend_->download(src, host, stream); });
}
void ProfilingBackend::fill(const Tensor& dst, float value, Stream& stream) {
  profiled(
      "fill", [&] { return work_of_fill(dst); }, stream, [&] { backend_->fill(dst, value, stream); });
}

void ProfilingBackend::cast(const CastArgs& args, Stream& stream) { run(&Backend::cast, args, stream); }
void ProfilingBackend::split(const SplitArgs& args, Stream& stream) { run(&Backend::split, args, stream); }
void ProfilingBackend::add(const AddArgs& args, Stream& stream) { run(&Backend::add, args, stream); }
void ProfilingBackend::gemm(const GemmArgs& args, Stream& stream) { run(&Backend::gemm, args, stream); }
void ProfilingBackend::column_sum(const ColumnSumArgs& args, Stream& stream) {
  run(&Backend::column_sum, args, stream);
}
void ProfilingBackend::embedding_forward(const EmbeddingForwardArgs& args, Stream& stream) {
  run(&Backend::embedding_forward, args, stream);
}
void ProfilingBackend::embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  run(&Backend::embedding_backward, args, stream);
}
void ProfilingBackend::layer_norm_forward(const LayerNormForwardArgs& args, Stream& stream) {
  run(&Backend::layer_norm_forward, args, stream);
}
void ProfilingBackend::layer_norm_backward(const LayerNormBackwardArgs& args, Stream& stream) {
  run(&Backend::layer_norm_backward, args, stream);
}
void ProfilingBackend::rms_norm_forward(const RmsNormForwardArgs& args, Stream& stream) {
  run(&Backend::rms_norm_forward, args, stream);
}
void ProfilingBackend::rms_norm_backward(const RmsNormBackwardArgs& args, Stream& stream) {
  run(&Backend::rms_norm_backward, args, stream);
}
void ProfilingBackend::attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  run(&Backend::attention_forward, args, stream);
}
void ProfilingBackend::attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  run(&Backend::attention_backward, args, stream);
}
void ProfilingBackend::gelu_forward(const GeluForwardArgs& args, Stream& stream) {
  run(&Backend::gelu_forward, args, stream);
}
void ProfilingBackend::gelu_backward(const GeluBackwardArgs& args, Stream& stream) {
  run(&Backend::gelu_backward, args, stream);
}
void ProfilingBackend::swiglu_forward(const SwigluForwardArgs& args, Stream& stream) {
  run(&Backend::swiglu_forward, args, stream);
}
void ProfilingBackend::swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) {
  run(&Backend::swiglu_backward, args, stream);
}
void ProfilingBackend::rope(const RopeArgs& args, Stream& stream) { run(&Backend::rope, args, stream); }
void ProfilingBackend::dropout(const DropoutArgs& args, Stream& stream) { run(&Backend::dropout, args, stream); }
void ProfilingBackend::cross_entropy_forward(const CrossEntropyForwardArgs& args, Stream& stream) {
  run(&Backend::cross_entropy_forward, args, stream);
}
void ProfilingBackend::cross_entropy_backward(const CrossEntropyBackwardArgs& args, Stream& stream) {
  run(&Backend::cross_entropy_backward, args, stream);
}
void ProfilingBackend::tensor_stats(const TensorStatsArgs& args, Stream& stream) {
  run(&Backend::tensor_stats, args, stream);
}
void ProfilingBackend::record_verdict(const RecordVerdictArgs& args, Stream& stream) {
  run(&Backend::record_verdict, args, stream);
}
void ProfilingBackend::decide_update(const DecideUpdateArgs& args, Stream& stream) {
  run(&Backend::decide_update, args, stream);
}
void ProfilingBackend::adamw(const AdamWArgs& args, Stream& stream) { run(&Backend::adamw, args, stream); }
void ProfilingBackend::sum_contributions(const SumContributionsArgs& args, Stream& stream) {
  run(&Backend::sum_contributions, args, stream);
}
void ProfilingBackend::amax(const AmaxArgs& args, Stream& stream) { run(&Backend::amax, args, stream); }
void ProfilingBackend::tensor_scale(const TensorScaleArgs& args, Stream& stream) {
  run(&Backend::tensor_scale, args, stream);
}
void ProfilingBackend::quantize(const QuantizeArgs& args, Stream& stream) { run(&Backend::quantize, args, stream); }
void ProfilingBackend::from_codes(const FromCodesArgs& args, Stream& stream) {
  run(&Backend::from_codes, args, stream);
}
void ProfilingBackend::hadamard(const HadamardArgs& args, Stream& stream) { run(&Backend::hadamard, args, stream); }
void ProfilingBackend::delayed_scales(const DelayedScalesArgs& args, Stream& stream) {
  run(&Backend::delayed_scales, args, stream);
}
void ProfilingBackend::exponent_histogram(const ExponentHistogramArgs& args, Stream& stream) {
  run(&Backend::exponent_histogram, args, stream);
}
void ProfilingBackend::update_stagnation(const UpdateStagnationArgs& args, Stream& stream) {
  run(&Backend::update_stagnation, args, stream);
}
void ProfilingBackend::rounding_losses(const RoundingLossesArgs& args, Stream& stream) {
  run(&Backend::rounding_losses, args, stream);
}
void ProfilingBackend::compare(const CompareArgs& args, Stream& stream) { run(&Backend::compare, args, stream); }

}  // namespace mantissa
