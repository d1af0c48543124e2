// RecordingBackend: computes nothing, as DryRunBackend, and tells of every call what it would have been.
#pragma once

#include <functional>
#include <string_view>

#include "core/backend/dry_run_backend.h"
#include "core/backend/kernel_call.h"

namespace mantissa {

class RecordingBackend final : public ForwardsAllKernels<RecordingBackend, DryRunBackend> {
 public:
  using Sink = std::function<void(KernelCall call)>;
  // The phase that calls belong to, of static storage; empty: calls are not recorded.
  using Phase = std::function<std::string_view()>;
  // `like` and `support`: see DryRunBackend.
  RecordingBackend(Sink sink, Phase phase, Backend* like = nullptr, Fp8GemmSupport support = Fp8GemmSupport::kNone);
  ~RecordingBackend() override;

  // Addresses that nobody else has: which operands are the same memory is part of what a kernel costs.
  std::shared_ptr<Storage> reserve(size_t bytes) override;

  void copy(const Tensor& src, const Tensor& dst, Stream& stream) override;
  void upload(const void* host, const Tensor& dst, Stream& stream) override;

  template <typename Args>
  void call(const Args& args, Stream& stream);

 private:
  const Sink sink_;
  const Phase phase_;
  uintptr_t next_address_ = uintptr_t{1} << 20;
};

}  // namespace mantissa
