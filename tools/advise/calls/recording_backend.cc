#include "tools/advise/calls/recording_backend.h"

#include "tools/advise/calls/kernel_operands.h"

namespace mantissa {
namespace {

constexpr size_t kPageBytes = 4096;

Operand operand_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.defined = true,
          .dtype = tensor.dtype(),
          .shape = tensor.shape(),
          .address = reinterpret_cast<uintptr_t>(tensor.raw())};
}

template <typename Args>
ProductFormat format_of(const Args&, const KernelWork& work) {
  switch (work.dtype) {
    case DType::kBF16:
      return ProductFormat::kBF16;
    case DType::kF16:
      return ProductFormat::kF16;
    case DType::kU8:
      return ProductFormat::kF8;
    case DType::kF32:
    case DType::kI32:
      break;
  }
  return ProductFormat::kF32;
}
ProductFormat format_of(const GemmArgs& args, const KernelWork& work) {
  const bool rounds = work.dtype == DType::kF32 && args.fp32_math == Fp32Math::kTf32;
  return rounds ? ProductFormat::kTf32 : format_of<GemmArgs>(args, work);
}

// Without what belongs to the walk.
template <typename Args>
Args kept(Args args) {
  for (Tensor* const tensor : operands_of(args)) *tensor = Tensor();
  return args;
}
GemmArgs kept(GemmArgs args) {
  args.b_cache = nullptr;
  return kept<GemmArgs>(std::move(args));
}

}  // namespace

template <typename Args>
void RecordingBackend::record(void (Backend::*kernel)(const Args&, Stream&), const Args& args, const char* caller) {
  if (phase_.empty()) return;
  const KernelWork work = work_of(args);
  KernelCall call{.phase = phase_,
                  .op = caller,
                  .work = work,
                  .format = format_of(args, work),
                  .variant = variant_of(args),
                  .operands = {},
                  .run = {}};
  Args own = args;
  for (const Tensor* const tensor : operands_of(own)) call.operands.push_back(operand_of(*tensor));
  call.run = [kernel, own = kept(std::move(own))](Backend& backend, Stream& stream, std::span<const Tensor> tensors) {
    Args bound = own;
    size_t index = 0;
    for (Tensor* const tensor : operands_of(bound)) *tensor = tensors[index++];
    (backend.*kernel)(bound, stream);
  };
  sink_(std::move(call));
}

std::shared_ptr<Storage> RecordingBackend::reserve(size_t bytes) {
  auto* const mark = reinterpret_cast<std::byte*>(next_address_);  // never read
  next_address_ += (bytes / kPageBytes + 1) * kPageBytes;
  return std::make_shared<Storage>(mark, bytes, Device{}, nullptr);
}

void RecordingBackend::copy(const Tensor& src, const Tensor& dst, Stream&) {
  if (phase_.empty()) return;
  sink_({.phase = phase_,
         .op = "copy",
         .work = work_of_copy(src, dst),
         .variant = {},
         .operands = {operand_of(src), operand_of(dst)},
         .run = [](Backend& backend, Stream& stream, std::span<const Tensor> t) { backend.copy(t[0], t[1], stream); }});
}

void RecordingBackend::upload(const void*, const Tensor& dst, Stream&) {
  if (phase_.empty()) return;
  sink_({.phase = phase_,
         .op = "upload",
         .work = work_of_transfer(dst),
         .variant = {},
         .operands = {operand_of(dst)},
         .run = [](Backend& backend, Stream& stream, std::span<const Tensor> t) {
           const std::vector<std::byte> host(t[0].size_bytes());
           backend.upload(host.data(), t[0], stream);
         }});
}

void RecordingBackend::fill(const Tensor& dst, float value, Stream&) {
  if (phase_.empty()) return;
  sink_({.phase = phase_,
         .op = "fill",
         .work = work_of_fill(dst),
         .variant = {},
         .operands = {operand_of(dst)},
         .run = [value](Backend& backend, Stream& stream, std::span<const Tensor> t) {
           backend.fill(t[0], value, stream);
         }});
}

void RecordingBackend::gemm(const GemmArgs& args, Stream& stream) {
  DryRunBackend::gemm(args, stream);  // takes note of what is packed
  record(&Backend::gemm, args);
}

void RecordingBackend::cast(const CastArgs& args, Stream&) { record(&Backend::cast, args); }
void RecordingBackend::split(const SplitArgs& args, Stream&) { record(&Backend::split, args); }
void RecordingBackend::add(const AddArgs& args, Stream&) { record(&Backend::add, args); }
void RecordingBackend::column_sum(const ColumnSumArgs& args, Stream&) { record(&Backend::column_sum, args); }
void RecordingBackend::embedding_forward(const EmbeddingForwardArgs& args, Stream&) {
  record(&Backend::embedding_forward, args);
}
void RecordingBackend::embedding_backward(const EmbeddingBackwardArgs& args, Stream&) {
  record(&Backend::embedding_backward, args);
}
void RecordingBackend::layer_norm_forward(const LayerNormForwardArgs& args, Stream&) {
  record(&Backend::layer_norm_forward, args);
}
void RecordingBackend::layer_norm_backward(const LayerNormBackwardArgs& args, Stream&) {
  record(&Backend::layer_norm_backward, args);
}
void RecordingBackend::rms_norm_forward(const RmsNormForwardArgs& args, Stream&) {
  record(&Backend::rms_norm_forward, args);
}
void RecordingBackend::rms_norm_backward(const RmsNormBackwardArgs& args, Stream&) {
  record(&Backend::rms_norm_backward, args);
}
void RecordingBackend::attention_forward(const AttentionForwardArgs& args, Stream&) {
  record(&Backend::attention_forward, args);
}
void RecordingBackend::attention_backward(const AttentionBackwardArgs& args, Stream&) {
  record(&Backend::attention_backward, args);
}
void RecordingBackend::gelu_forward(const GeluForwardArgs& args, Stream&) { record(&Backend::gelu_forward, args); }
void RecordingBackend::gelu_backward(const GeluBackwardArgs& args, Stream&) { record(&Backend::gelu_backward, args); }
void RecordingBackend::swiglu_forward(const SwigluForwardArgs& args, Stream&) {
  record(&Backend::swiglu_forward, args);
}
void RecordingBackend::swiglu_backward(const SwigluBackwardArgs& args, Stream&) {
  record(&Backend::swiglu_backward, args);
}
void RecordingBackend::rope(const RopeArgs& args, Stream&) { record(&Backend::rope, args); }
void RecordingBackend::dropout(const DropoutArgs& args, Stream&) { record(&Backend::dropout, args); }
void RecordingBackend::cross_entropy_forward(const CrossEntropyForwardArgs& args, Stream&) {
  record(&Backend::cross_entropy_forward, args);
}
void RecordingBackend::cross_entropy_backward(const CrossEntropyBackwardArgs& args, Stream&) {
  record(&Backend::cross_entropy_backward, args);
}
void RecordingBackend::tensor_stats(const TensorStatsArgs& args, Stream&) { record(&Backend::tensor_stats, args); }
void RecordingBackend::record_verdict(const RecordVerdictArgs& args, Stream&) {
  record(&Backend::record_verdict, args);
}
void RecordingBackend::decide_update(const DecideUpdateArgs& args, Stream&) { record(&Backend::decide_update, args); }
void RecordingBackend::adamw(const AdamWArgs& args, Stream&) { record(&Backend::adamw, args); }
void RecordingBackend::sum_contributions(const SumContributionsArgs& args, Stream&) {
  record(&Backend::sum_contributions, args);
}
void RecordingBackend::amax(const AmaxArgs& args, Stream&) { record(&Backend::amax, args); }
void RecordingBackend::tensor_scale(const TensorScaleArgs& args, Stream&) { record(&Backend::tensor_scale, args); }
void RecordingBackend::quantize(const QuantizeArgs& args, Stream&) { record(&Backend::quantize, args); }
void RecordingBackend::from_codes(const FromCodesArgs& args, Stream&) { record(&Backend::from_codes, args); }
void RecordingBackend::hadamard(const HadamardArgs& args, Stream&) { record(&Backend::hadamard, args); }
void RecordingBackend::delayed_scales(const DelayedScalesArgs& args, Stream&) {
  record(&Backend::delayed_scales, args);
}

}  // namespace mantissa
