#include "core/backend/recording_backend.h"

#include <type_traits>

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
  switch (work.dtype) {
    case DType::kBF16:
      return ProductFormat::kBF16;
    case DType::kF16:
      return ProductFormat::kF16;
    case DType::kU8:
      return ProductFormat::kF8;
    case DType::kF64:
      return ProductFormat::kF64;
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

}  // namespace

RecordingBackend::RecordingBackend(Sink sink, Phase phase, Backend* like, Fp8GemmSupport support)
    : ForwardsAllKernels<RecordingBackend, DryRunBackend>(like, support),
      sink_(std::move(sink)),
      phase_(std::move(phase)) {}
RecordingBackend::~RecordingBackend() = default;

template <typename Args>
void RecordingBackend::call(const Args& args, Stream& stream) {
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
         .run = [own = kept(args)](Backend& backend, Stream& stream, std::span<const Tensor> tensors) {
           Args bound = *own;
           assign(Args::operands(bound), tensors);
           backend.run(bound, stream);
         }});
}

std::shared_ptr<Storage> RecordingBackend::reserve(size_t bytes) {
  auto* const mark = reinterpret_cast<std::byte*>(next_address_);  // NOLINT(performance-no-int-to-ptr): never read
  next_address_ += (bytes / kPageBytes + 1) * kPageBytes;
  return std::make_shared<Storage>(mark, bytes, Device{}, nullptr);
}

void RecordingBackend::copy(const Tensor& src, const Tensor& dst, Stream&) {
  const std::string_view phase = phase_();
  if (phase.empty()) return;
  sink_({.phase = phase,
         .op = "copy",
         .work = work_of_copy(src, dst),
         .variant = {},
         .operands = {operand_of(src), operand_of(dst)},
         .run = [](Backend& backend, Stream& stream, std::span<const Tensor> t) { backend.copy(t[0], t[1], stream); }});
}

void RecordingBackend::upload(const void*, const Tensor& dst, Stream&) {
  const std::string_view phase = phase_();
  if (phase.empty()) return;
  sink_({.phase = phase,
         .op = "upload",
         .work = work_of_transfer(dst),
         .variant = {},
         .operands = {operand_of(dst)},
         .run = [](Backend& backend, Stream& stream, std::span<const Tensor> t) {
           const std::vector<std::byte> host(t[0].size_bytes());
           backend.upload(host.data(), t[0], stream);
         }});
}

}  // namespace mantissa
