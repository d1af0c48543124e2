#include "core/cuda/cuda_backend.h"

#include <fmt/core.h>

#include <cstring>

#include "core/backend/kernel_checks.h"
#include "core/backend/registry.h"
#include "core/cuda/adamw.h"
#include "core/cuda/add.h"
#include "core/cuda/amax.h"
#include "core/cuda/attention.h"
#include "core/cuda/cast.h"
#include "core/cuda/codes.h"
#include "core/cuda/column_sum.h"
#include "core/cuda/compare.h"
#include "core/cuda/cross_entropy.h"
#include "core/cuda/datasheet_peaks.h"
#include "core/cuda/delayed_scales.h"
#include "core/cuda/device_choice.h"
#include "core/cuda/dropout.h"
#include "core/cuda/embedding.h"
#include "core/cuda/exponent_histogram.h"
#include "core/cuda/fill.h"
#include "core/cuda/gelu.h"
#include "core/cuda/gemm.h"
#include "core/cuda/graph.h"
#include "core/cuda/hadamard.h"
#include "core/cuda/layer_norm.h"
#include "core/cuda/nvtx_ranges.h"
#include "core/cuda/quantize.h"
#include "core/cuda/rms_norm.h"
#include "core/cuda/rope.h"
#include "core/cuda/rounding_losses.h"
#include "core/cuda/split.h"
#include "core/cuda/step_decision.h"
#include "core/cuda/stream_timer.h"
#include "core/cuda/sum_contributions.h"
#include "core/cuda/swiglu.h"
#include "core/cuda/tensor_stats.h"
#include "core/cuda/update_stagnation.h"
#include "core/profile/range.h"

namespace mantissa::cuda {
namespace {

std::string device_or_gemm_unusable_reason(int index) {
  const std::string reason = unusable_reason(index);
  return reason.empty() ? gemm_unusable_reason() : reason;
}

const bool kRegistered = register_backend(
    "cuda",
    {.create = [](int index) { return std::make_unique<CudaBackend>(index); },
     .unusable_reason = device_or_gemm_unusable_reason,
     .device_count = device_count,
     .device_identity = [](int index) { return device_properties(index).identity; },
     .datasheet_flops = [](int index, DType dtype,
                           Fp32Math math) { return datasheet_flops(device_properties(index).name, dtype, math); },
     .create_timer = [](Stream& stream) { return make_stream_timer(as_cuda(stream)); },
     .preference = 1});

// The device is chosen before anything is made on it.
DeviceProperties open_device(int index) {
  if (const std::string reason = device_or_gemm_unusable_reason(index); !reason.empty()) {
    throw ConfigError(fmt::format("[cuda] {}", reason));
  }
  set_device(index);
  return device_properties(index);
}

CopyKind copy_kind(const Tensor& src, const Tensor& dst) {
  if (src.device().kind == Device::Kind::kCpu) return CopyKind::kHostToDevice;
  return dst.device().kind == Device::Kind::kCpu ? CopyKind::kDeviceToHost : CopyKind::kDeviceToDevice;
}

// A stream for the call of a kernel, and a range with the name of the caller for as long as the call lasts: temporaries
// live to the end of the full expression.
struct StreamInRange {
  Range range;
  CudaStream& stream;
  operator CudaStream&() const { return stream; }
};
StreamInRange in_range(Stream& stream, const char* caller = __builtin_FUNCTION()) {
  return {Range(RangeKind::kOp, caller), as_cuda(stream)};
}

std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

}  // namespace

CudaBackend::CudaBackend(int device_index)
    : device_{Device::Kind::kCuda, device_index},
      properties_(open_device(device_index)),
      memory_(std::make_shared<DeviceMemory>(device_index)),
      set_up_(memory_, properties_) {
  send_ranges_to_profiler();
}

std::string CudaBackend::describe() const {
  return fmt::format("cuda: GPU {} ({}, {:.0f} GiB, compute capability {}.{}), driver for CUDA {}, runtime {}, {}",
                     device_.index, properties_.name, static_cast<double>(properties_.total_bytes) / (1 << 30),
                     properties_.major, properties_.minor, version(driver_version()), version(runtime_version()),
                     describe_gemm());
}

NarrowUnits CudaBackend::narrow_units() const {
  return gemm_options_.narrow_math == NarrowMath::kEmulated ? NarrowUnits::kNone : cuda::narrow_units(properties_);
}

std::string CudaBackend::describe_narrow_units() const {
  return gemm_options_.narrow_math == NarrowMath::kEmulated ? "cuda.narrow_math = emulated"
                                                            : cuda::describe_narrow_units(properties_);
}

std::unique_ptr<Stream> CudaBackend::create_stream() {
  auto stream = std::make_unique<CudaStream>(memory_, properties_);
  stream->set_gemm_options(gemm_options_);
  stream->set_attention_choice(attention_choice_);
  return stream;
}

std::unique_ptr<CapturedWork> CudaBackend::capture(Stream& stream, const std::function<void()>& body) {
  return capture_graph(as_cuda(stream), body);
}

std::shared_ptr<Storage> CudaBackend::allocate(size_t bytes, const char* what) {
  auto storage = memory_->allocate(bytes, what);
  set_bytes_async(storage->data(), 0, bytes, set_up_.handle());
  set_up_.synchronize();  // whatever stream uses it first
  return storage;
}

std::shared_ptr<Storage> CudaBackend::reserve(size_t bytes) { return memory_->allocate(bytes, "step arena"); }

std::shared_ptr<Storage> CudaBackend::allocate_staging(size_t bytes, const char* what) try {
  void* const data = allocate_pinned(bytes);
  std::memset(data, 0, bytes);
  return std::make_shared<Storage>(static_cast<std::byte*>(data), bytes, Device{}, [data] { free_pinned(data); });
} catch (const CudaError& error) {
  throw CudaError(fmt::format("{}; it was for '{}'", error.what(), what));
}

void CudaBackend::copy(const Tensor& src, const Tensor& dst, Stream& stream) {
  check_copy_args(src, dst);
  copy_async(dst.raw(), src.raw(), src.size_bytes(), copy_kind(src, dst), in_range(stream).stream.handle());
}

void CudaBackend::upload(const void* host, const Tensor& dst, Stream& stream) {
  check_defined("upload", "dst", dst);
  staging_.upload(host, dst.raw(), dst.size_bytes(), in_range(stream));
}

void CudaBackend::download(const Tensor& src, void* host, Stream& stream) {
  check_defined("download", "src", src);
  staging_.download(src.raw(), host, src.size_bytes(), in_range(stream));
}

void CudaBackend::fill(const Tensor& dst, float value, Stream& stream) { cuda::fill(dst, value, in_range(stream)); }
void CudaBackend::cast(const CastArgs& args, Stream& stream) { cuda::cast(args, in_range(stream)); }
void CudaBackend::split(const SplitArgs& args, Stream& stream) { cuda::split(args, in_range(stream)); }
void CudaBackend::add(const AddArgs& args, Stream& stream) { cuda::add(args, in_range(stream)); }
void CudaBackend::gemm(const GemmArgs& args, Stream& stream) { cuda::gemm(args, in_range(stream)); }
void CudaBackend::column_sum(const ColumnSumArgs& args, Stream& stream) { cuda::column_sum(args, in_range(stream)); }
void CudaBackend::embedding_forward(const EmbeddingForwardArgs& args, Stream& stream) {
  cuda::embedding_forward(args, in_range(stream));
}
void CudaBackend::embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  cuda::embedding_backward(args, in_range(stream));
}
void CudaBackend::layer_norm_forward(const LayerNormForwardArgs& args, Stream& stream) {
  cuda::layer_norm_forward(args, in_range(stream));
}
void CudaBackend::layer_norm_backward(const LayerNormBackwardArgs& args, Stream& stream) {
  cuda::layer_norm_backward(args, in_range(stream));
}
void CudaBackend::rms_norm_forward(const RmsNormForwardArgs& args, Stream& stream) {
  cuda::rms_norm_forward(args, in_range(stream));
}
void CudaBackend::rms_norm_backward(const RmsNormBackwardArgs& args, Stream& stream) {
  cuda::rms_norm_backward(args, in_range(stream));
}
void CudaBackend::attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  cuda::attention_forward(args, in_range(stream));
}
void CudaBackend::attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  cuda::attention_backward(args, in_range(stream));
}
void CudaBackend::gelu_forward(const GeluForwardArgs& args, Stream& stream) {
  cuda::gelu_forward(args, in_range(stream));
}
void CudaBackend::gelu_backward(const GeluBackwardArgs& args, Stream& stream) {
  cuda::gelu_backward(args, in_range(stream));
}
void CudaBackend::swiglu_forward(const SwigluForwardArgs& args, Stream& stream) {
  cuda::swiglu_forward(args, in_range(stream));
}
void CudaBackend::swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) {
  cuda::swiglu_backward(args, in_range(stream));
}
void CudaBackend::rope(const RopeArgs& args, Stream& stream) { cuda::rope(args, in_range(stream)); }
void CudaBackend::dropout(const DropoutArgs& args, Stream& stream) { cuda::dropout(args, in_range(stream)); }
void CudaBackend::cross_entropy_forward(const CrossEntropyForwardArgs& args, Stream& stream) {
  cuda::cross_entropy_forward(args, in_range(stream));
}
void CudaBackend::cross_entropy_backward(const CrossEntropyBackwardArgs& args, Stream& stream) {
  cuda::cross_entropy_backward(args, in_range(stream));
}
void CudaBackend::tensor_stats(const TensorStatsArgs& args, Stream& stream) {
  cuda::tensor_stats(args, in_range(stream));
}
void CudaBackend::record_verdict(const RecordVerdictArgs& args, Stream& stream) {
  cuda::record_verdict(args, in_range(stream));
}
void CudaBackend::decide_update(const DecideUpdateArgs& args, Stream& stream) {
  cuda::decide_update(args, in_range(stream));
}
void CudaBackend::adamw(const AdamWArgs& args, Stream& stream) { cuda::adamw(args, in_range(stream)); }
void CudaBackend::sum_contributions(const SumContributionsArgs& args, Stream& stream) {
  cuda::sum_contributions(args, in_range(stream));
}
void CudaBackend::amax(const AmaxArgs& args, Stream& stream) { cuda::amax(args, in_range(stream)); }
void CudaBackend::tensor_scale(const TensorScaleArgs& args, Stream& stream) {
  cuda::tensor_scale(args, in_range(stream));
}
void CudaBackend::quantize(const QuantizeArgs& args, Stream& stream) { cuda::quantize(args, in_range(stream)); }
void CudaBackend::from_codes(const FromCodesArgs& args, Stream& stream) { cuda::from_codes(args, in_range(stream)); }
void CudaBackend::hadamard(const HadamardArgs& args, Stream& stream) { cuda::hadamard(args, in_range(stream)); }
void CudaBackend::delayed_scales(const DelayedScalesArgs& args, Stream& stream) {
  cuda::delayed_scales(args, in_range(stream));
}
void CudaBackend::exponent_histogram(const ExponentHistogramArgs& args, Stream& stream) {
  cuda::exponent_histogram(args, in_range(stream));
}
void CudaBackend::update_stagnation(const UpdateStagnationArgs& args, Stream& stream) {
  cuda::update_stagnation(args, in_range(stream));
}
void CudaBackend::rounding_losses(const RoundingLossesArgs& args, Stream& stream) {
  cuda::rounding_losses(args, in_range(stream));
}
void CudaBackend::compare(const CompareArgs& args, Stream& stream) { cuda::compare(args, in_range(stream)); }

}  // namespace mantissa::cuda
