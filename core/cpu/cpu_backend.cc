#include "core/cpu/cpu_backend.h"

#include <dnnl.h>
#include <fmt/core.h>

#include <cstring>
#include <fstream>

#include "core/backend/kernel_checks.h"
#include "core/backend/registry.h"
#include "core/base/process_memory.h"
#include "core/base/thread_team.h"
#include "core/cpu/adamw.h"
#include "core/cpu/add.h"
#include "core/cpu/attention.h"
#include "core/cpu/cast.h"
#include "core/cpu/column_sum.h"
#include "core/cpu/cross_entropy.h"
#include "core/cpu/dropout.h"
#include "core/cpu/embedding.h"
#include "core/cpu/fill.h"
#include "core/cpu/gelu.h"
#include "core/cpu/gemm.h"
#include "core/cpu/host_memory.h"
#include "core/cpu/layer_norm.h"
#include "core/cpu/packed_operand.h"
#include "core/cpu/quant/amax.h"
#include "core/cpu/quant/codes.h"
#include "core/cpu/quant/compare.h"
#include "core/cpu/quant/delayed_scales.h"
#include "core/cpu/quant/exponent_histogram.h"
#include "core/cpu/quant/hadamard.h"
#include "core/cpu/quant/quantize.h"
#include "core/cpu/quant/rounding_losses.h"
#include "core/cpu/quant/update_stagnation.h"
#include "core/cpu/rms_norm.h"
#include "core/cpu/rope.h"
#include "core/cpu/split.h"
#include "core/cpu/step_decision.h"
#include "core/cpu/sum_contributions.h"
#include "core/cpu/swiglu.h"
#include "core/cpu/tensor_stats.h"
#include "core/cpu/tf32.h"
#include "hwy/highway.h"

namespace mantissa::cpu {
namespace {

class CpuEvent final : public Event {
 public:
  bool done() const override { return true; }
};

class CpuStream final : public Stream {
 public:
  std::unique_ptr<Event> record() override { return std::make_unique<CpuEvent>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
};

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
  }
  return "unknown processor";
}

const bool kRegistered =
    register_backend("cpu", {.create = [](int device_index) { return std::make_unique<CpuBackend>(device_index); }});

}  // namespace

std::unique_ptr<OperandCache> CpuBackend::make_operand_cache() { return std::make_unique<PackedOperand>(); }

CpuBackend::CpuBackend(int device_index) : device_{Device::Kind::kCpu, device_index} {
  if (hwy::SupportedAndGeneratedTargets().empty()) {
    throw Error(ExitCode::kInternal, fmt::format("[cpu] {} supports none of the instruction sets that the kernels were "
                                                 "compiled for; the least one is {}",
                                                 cpu_model(), hwy::TargetName(HWY_STATIC_TARGET)));
  }
}

std::string CpuBackend::describe() const {
  const dnnl_version_t* onednn = dnnl_version();
  return fmt::format("cpu: {}, {}, {} thread(s), oneDNN {}.{}.{}", cpu_model(),
                     hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()), threads(), onednn->major,
                     onednn->minor, onednn->patch);
}

std::unique_ptr<Stream> CpuBackend::create_stream() { return std::make_unique<CpuStream>(); }

std::shared_ptr<Storage> CpuBackend::allocate(size_t bytes, const char* what) {
  return allocate_host(bytes, what, device_);
}

std::shared_ptr<Storage> CpuBackend::reserve(size_t bytes) { return reserve_host(bytes, device_); }
MemoryUse CpuBackend::memory_use() const { return {resident_bytes(), peak_resident_bytes()}; }

void CpuBackend::copy(const Tensor& src, const Tensor& dst, Stream&) {
  check_copy_args(src, dst);
  if (src.size_bytes() != 0) std::memcpy(dst.raw(), src.raw(), src.size_bytes());
}

void CpuBackend::upload(const void* host, const Tensor& dst, Stream&) {
  check_defined("upload", "dst", dst);
  if (dst.size_bytes() != 0) std::memcpy(dst.raw(), host, dst.size_bytes());
}

void CpuBackend::download(const Tensor& src, void* host, Stream&) {
  check_defined("download", "src", src);
  if (src.size_bytes() != 0) std::memcpy(host, src.raw(), src.size_bytes());
}

void CpuBackend::fill(const Tensor& dst, float value, Stream&) { cpu::fill(dst, value); }

void CpuBackend::cast(const CastArgs& args, Stream&) { cpu::cast(args); }
void CpuBackend::split(const SplitArgs& args, Stream&) { cpu::split(args); }
void CpuBackend::add(const AddArgs& args, Stream&) { cpu::add(args); }
void CpuBackend::gemm(const GemmArgs& args, Stream&) {
  MANTISSA_CHECK(!args.a.defined() || args.a.dtype() != DType::kU8, "[gemm] a CPU multiplies no codes");
  return asks_for_tf32(args) ? gemm_tf32(args) : cpu::gemm(args);
}
void CpuBackend::column_sum(const ColumnSumArgs& args, Stream&) { cpu::column_sum(args); }
void CpuBackend::embedding_forward(const EmbeddingForwardArgs& args, Stream&) { cpu::embedding_forward(args); }
void CpuBackend::embedding_backward(const EmbeddingBackwardArgs& args, Stream&) { cpu::embedding_backward(args); }
void CpuBackend::layer_norm_forward(const LayerNormForwardArgs& args, Stream&) { cpu::layer_norm_forward(args); }
void CpuBackend::layer_norm_backward(const LayerNormBackwardArgs& args, Stream&) { cpu::layer_norm_backward(args); }
void CpuBackend::rms_norm_forward(const RmsNormForwardArgs& args, Stream&) { cpu::rms_norm_forward(args); }
void CpuBackend::rms_norm_backward(const RmsNormBackwardArgs& args, Stream&) { cpu::rms_norm_backward(args); }
void CpuBackend::attention_forward(const AttentionForwardArgs& args, Stream&) { cpu::attention_forward(args); }
void CpuBackend::attention_backward(const AttentionBackwardArgs& args, Stream&) { cpu::attention_backward(args); }
void CpuBackend::gelu_forward(const GeluForwardArgs& args, Stream&) { cpu::gelu_forward(args); }
void CpuBackend::gelu_backward(const GeluBackwardArgs& args, Stream&) { cpu::gelu_backward(args); }
void CpuBackend::swiglu_forward(const SwigluForwardArgs& args, Stream&) { cpu::swiglu_forward(args); }
void CpuBackend::swiglu_backward(const SwigluBackwardArgs& args, Stream&) { cpu::swiglu_backward(args); }
void CpuBackend::rope(const RopeArgs& args, Stream&) { cpu::rope(args); }
void CpuBackend::dropout(const DropoutArgs& args, Stream&) { cpu::dropout(args); }
void CpuBackend::cross_entropy_forward(const CrossEntropyForwardArgs& args, Stream&) {
  cpu::cross_entropy_forward(args);
}
void CpuBackend::cross_entropy_backward(const CrossEntropyBackwardArgs& args, Stream&) {
  cpu::cross_entropy_backward(args);
}
void CpuBackend::tensor_stats(const TensorStatsArgs& args, Stream&) { cpu::tensor_stats(args); }
void CpuBackend::record_verdict(const RecordVerdictArgs& args, Stream&) { cpu::record_verdict(args); }
void CpuBackend::decide_update(const DecideUpdateArgs& args, Stream&) { cpu::decide_update(args); }
void CpuBackend::adamw(const AdamWArgs& args, Stream&) { cpu::adamw(args); }
void CpuBackend::sum_contributions(const SumContributionsArgs& args, Stream&) { cpu::sum_contributions(args); }
void CpuBackend::amax(const AmaxArgs& args, Stream&) { cpu::amax(args); }
void CpuBackend::tensor_scale(const TensorScaleArgs& args, Stream&) { cpu::tensor_scale(args); }
void CpuBackend::quantize(const QuantizeArgs& args, Stream&) { cpu::quantize(args); }
void CpuBackend::from_codes(const FromCodesArgs& args, Stream&) { cpu::from_codes(args); }
void CpuBackend::hadamard(const HadamardArgs& args, Stream&) { cpu::hadamard(args); }
void CpuBackend::delayed_scales(const DelayedScalesArgs& args, Stream&) { cpu::delayed_scales(args); }
void CpuBackend::exponent_histogram(const ExponentHistogramArgs& args, Stream&) { cpu::exponent_histogram(args); }
void CpuBackend::update_stagnation(const UpdateStagnationArgs& args, Stream&) { cpu::update_stagnation(args); }
void CpuBackend::rounding_losses(const RoundingLossesArgs& args, Stream&) { cpu::rounding_losses(args); }
void CpuBackend::compare(const CompareArgs& args, Stream&) { cpu::compare(args); }

}  // namespace mantissa::cpu
