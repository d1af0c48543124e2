#include "core/backend/decorators.h"

#include "core/backend/all_args.h"

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
  using enum ProductFormat;
  constexpr ProductFormat kByDType[] = {kF32, kBF16, kF16, kF32, kF8, kF64};
  return kByDType[static_cast<size_t>(work.dtype)];
}
ProductFormat format_of(const GemmArgs& args, const KernelWork& work) {
  const bool rounds = work.dtype == DType::kF32 && args.fp32_math == Fp32Math::kTf32;
  return rounds ? ProductFormat::kTf32 : format_of<GemmArgs>(args, work);
}

std::vector<Operand> operands_of(std::span<const Tensor* const> tensors) {
  std::vector<Operand> operands;
  for (const Tensor* const tensor : tensors) operands.push_back(operand_of(*tensor));
  return operands;
}

// The call's arguments without operands and caches.
template <typename Args>
std::shared_ptr<Args> kept(const Args& args) {
  auto own = std::make_shared<Args>(args);
  if constexpr (std::is_same_v<Args, GemmArgs>) own->b_cache = nullptr;
  for (Tensor* const tensor : Args::operands(*own)) *tensor = Tensor();
  return own;
}

class RecordingBackend final : public ForwardsAllKernels<RecordingBackend, DryRunBackend> {
 public:
  RecordingBackend(std::function<void(KernelCall call)> sink, std::function<std::string_view()> phase, Backend* like,
                   Fp8GemmSupport support)
      : ForwardsAllKernels<RecordingBackend, DryRunBackend>(like, support),
        sink_(std::move(sink)),
        phase_(std::move(phase)) {}

  // Unique addresses: the cost of a kernel depends on which operands share memory.
  std::shared_ptr<Storage> reserve(size_t bytes) override {
    auto* const mark = reinterpret_cast<std::byte*>(next_address_);  // NOLINT(performance-no-int-to-ptr): never read
    next_address_ += (bytes / kPageBytes + 1) * kPageBytes;
    return std::make_shared<Storage>(mark, bytes, Device{}, nullptr);
  }

  void copy(const Tensor& src, const Tensor& dst, Stream&) override {
    const std::string_view phase = phase_();
    if (phase.empty()) return;
    sink_({.phase = phase,
           .op = "copy",
           .work = work_of_copy(src, dst),
           .operands = {operand_of(src), operand_of(dst)},
           .run = [](Backend& backend, Stream& s, std::span<const Tensor> t) { backend.copy(t[0], t[1], s); }});
  }
  void upload(const void*, const Tensor& dst, Stream&) override {
    const std::string_view phase = phase_();
    if (phase.empty()) return;
    sink_({.phase = phase,
           .op = "upload",
           .work = work_of_transfer(dst),
           .operands = {operand_of(dst)},
           .run = [](Backend& backend, Stream& s, std::span<const Tensor> t) {
             const std::vector<std::byte> host(t[0].size_bytes());
             backend.upload(host.data(), t[0], s);
           }});
  }

  template <typename Args>
  void call(const Args& args, Stream& stream) {
    if constexpr (std::is_same_v<Args, GemmArgs>) DryRunBackend::call(args, stream);
    const std::string_view phase = phase_();
    if (phase.empty()) return;
    const KernelWork work = work_of(args);
    sink_({.phase = phase,
           .op = Args::kName,
           .work = work,
           .format = format_of(args, work),
           .variant = variant_of(args),
           .operands = operands_of(Args::operands(args)),
           .run = [own = kept(args)](Backend& backend, Stream& s, std::span<const Tensor> tensors) {
             Args bound = *own;
             for (size_t i = 0; Tensor* const tensor : Args::operands(bound)) *tensor = tensors[i++];
             backend.run(bound, s);
           }});
  }

 private:
  const std::function<void(KernelCall call)> sink_;
  const std::function<std::string_view()> phase_;
  uintptr_t next_address_ = uintptr_t{1} << 20;
};

class ProfilingBackend final : public ForwardsAllKernels<ProfilingBackend> {
 public:
  ProfilingBackend(std::unique_ptr<Backend> backend, StepProfiler& profiler)
      : backend_(std::move(backend)), profiler_(profiler) {}

  Device device() const override { return backend_->device(); }
  bool computes() const override { return backend_->computes(); }
  std::string describe() const override { return backend_->describe(); }
  std::unique_ptr<Stream> create_stream() override { return backend_->create_stream(); }
  Fp8GemmSupport fp8_gemm_support() const override { return backend_->fp8_gemm_support(); }
  std::string describe_fp8_gemm_support() const override { return backend_->describe_fp8_gemm_support(); }
  std::unique_ptr<OperandCache> make_operand_cache() override { return backend_->make_operand_cache(); }
  void set_gemm_options(const GemmOptions& options) override { backend_->set_gemm_options(options); }
  void set_attention_choice(AttentionChoice choice) override { backend_->set_attention_choice(choice); }
  std::unique_ptr<CapturedWork> capture(Stream&, const std::function<void()>&) override {
    throw ConfigError(
        "profile: true cannot measure captured work, which makes no kernel calls when it is repeated: give "
        "profile=false or cuda.graph=false");
  }

  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override { return backend_->allocate(bytes, what); }
  std::shared_ptr<Storage> reserve(size_t bytes) override { return backend_->reserve(bytes); }
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) override {
    return backend_->allocate_staging(bytes, what);
  }
  MemoryUse memory_use() const override { return backend_->memory_use(); }
  void copy(const Tensor& src, const Tensor& dst, Stream& stream) override {
    const auto op = profiled("copy", stream, [&] { return work_of_copy(src, dst); });
    backend_->copy(src, dst, stream);
  }
  void upload(const void* host, const Tensor& dst, Stream& stream) override {
    const auto op = profiled("upload", stream, [&] { return work_of_transfer(dst); });
    backend_->upload(host, dst, stream);
  }
  void download(const Tensor& src, void* host, Stream& stream) override {
    const auto op = profiled("download", stream, [&] { return work_of_transfer(src); });
    backend_->download(src, host, stream);
  }

  template <typename Args>
  void call(const Args& args, Stream& stream) {  // under the name of the kernel
    const auto op = profiled(Args::kName.data(), stream, [&] { return work_of(args); });
    backend_->run(args, stream);
  }

 private:
  // The operation of a call. Its work is counted only while the profiler records.
  template <typename Work>
  std::optional<StepProfiler::Op> profiled(const char* name, Stream& stream, const Work& work) {
    if (!profiler_.recording()) return std::nullopt;
    return std::optional<StepProfiler::Op>(std::in_place, profiler_, name, work(), &stream);
  }

  const std::unique_ptr<Backend> backend_;
  StepProfiler& profiler_;
};

}  // namespace

void DryRunBackend::call(const GemmArgs& args, Stream&) {
  if (args.b_cache != nullptr) args.b_cache->plan(args);
}

std::string_view name(ProductFormat format) {
  constexpr std::string_view kNames[] = {"fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "fp64"};
  static_assert(std::size(kNames) == static_cast<size_t>(ProductFormat::kF64) + 1);
  return kNames[static_cast<size_t>(format)];
}

std::string KernelCall::signature() const {
  std::string text = fmt::format("{} {}", op, variant);
  for (size_t index = 0; index < operands.size(); ++index) {
    const Operand& operand = operands[index];
    if (!operand.defined) {
      text += " -";
      continue;
    }
    text += fmt::format(" {}{}", name(operand.dtype), operand.shape.to_string());
    for (size_t earlier = 0; earlier < index; ++earlier) {
      if (!operands[earlier].defined || operands[earlier].address != operand.address) continue;
      text += fmt::format("={}", earlier);
      break;
    }
  }
  return text;
}

std::unique_ptr<Backend> create_recording_backend(std::function<void(KernelCall call)> sink,
                                                  std::function<std::string_view()> phase, Backend* like,
                                                  Fp8GemmSupport support) {
  return std::make_unique<RecordingBackend>(std::move(sink), std::move(phase), like, support);
}

std::unique_ptr<Backend> create_profiling_backend(std::unique_ptr<Backend> backend, StepProfiler& profiler) {
  return std::make_unique<ProfilingBackend>(std::move(backend), profiler);
}

}  // namespace mantissa
