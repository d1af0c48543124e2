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
  // `like` and `support`: see DryRunBackend. Nothing is told until phase() says where the step is.
  explicit RecordingBackend(Sink sink, Backend* like = nullptr, Fp8GemmSupport support = Fp8GemmSupport::kNone);
  ~RecordingBackend() override;

  // What follows belongs to this phase, a string of static storage; "" for no step.
  void phase(std::string_view name) { phase_ = name; }

  // Addresses that nobody else has: which operands are the same memory is part of what a kernel costs.
  std::shared_ptr<Storage> reserve(size_t bytes) override;

  void copy(const Tensor& src, const Tensor& dst, Stream& stream) override;
  void upload(const void* host, const Tensor& dst, Stream& stream) override;

  template <typename Args>
  void call(const Args& args, Stream& stream);

 private:
  const Sink sink_;
  std::string_view phase_;
  uintptr_t next_address_ = uintptr_t{1} << 20;
};

}  // namespace mantissa
