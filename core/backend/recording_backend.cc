#include "core/backend/recording_backend.h"

#include "core/backend/all_args.h"
#include "core/backend/dry_run_backend.h"

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

void assign(std::span<Tensor* const> to, std::span<const Tensor> from) {
  for (size_t i = 0; i < to.size(); ++i) *to[i] = from[i];
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
           .variant = {},
           .operands = {operand_of(src), operand_of(dst)},
           .run = [](Backend& backend, Stream& s, std::span<const Tensor> t) { backend.copy(t[0], t[1], s); }});
  }
  void upload(const void*, const Tensor& dst, Stream&) override {
    const std::string_view phase = phase_();
    if (phase.empty()) return;
    sink_({.phase = phase,
           .op = "upload",
           .work = work_of_transfer(dst),
           .variant = {},
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
             assign(Args::operands(bound), tensors);
             backend.run(bound, s);
           }});
  }

 private:
  const std::function<void(KernelCall call)> sink_;
  const std::function<std::string_view()> phase_;
  uintptr_t next_address_ = uintptr_t{1} << 20;
};

}  // namespace

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

}  // namespace mantissa
