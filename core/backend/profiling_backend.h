// ProfilingBackend: a backend that reports every call to a StepProfiler before it forwards the call.
#pragma once

#include "core/backend/backend.h"
#include "core/profile/step_profiler.h"

namespace mantissa {

class ProfilingBackend final : public ForwardsAllKernels<ProfilingBackend> {
 public:
  // `profiler` must outlive the backend.
  ProfilingBackend(std::unique_ptr<Backend> backend, StepProfiler& profiler);
  ~ProfilingBackend() override;

  Device device() const override { return backend_->device(); }
  bool computes() const override { return backend_->computes(); }
  std::string describe() const override { return backend_->describe(); }
  std::unique_ptr<Stream> create_stream() override { return backend_->create_stream(); }
  Fp8GemmSupport fp8_gemm_support() const override { return backend_->fp8_gemm_support(); }
  std::string describe_fp8_gemm_support() const override { return backend_->describe_fp8_gemm_support(); }
  std::unique_ptr<OperandCache> make_operand_cache() override { return backend_->make_operand_cache(); }
  void set_gemm_options(const GemmOptions& options) override { backend_->set_gemm_options(options); }
  void set_attention_choice(AttentionChoice choice) override { backend_->set_attention_choice(choice); }
  // Throws ConfigError: captured work makes no calls when it is repeated.
  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& body) override;

  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override { return backend_->allocate(bytes, what); }
  std::shared_ptr<Storage> reserve(size_t bytes) override { return backend_->reserve(bytes); }
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) override {
    return backend_->allocate_staging(bytes, what);
  }
  MemoryUse memory_use() const override { return backend_->memory_use(); }
  void copy(const Tensor& src, const Tensor& dst, Stream& stream) override;
  void upload(const void* host, const Tensor& dst, Stream& stream) override;
  void download(const Tensor& src, void* host, Stream& stream) override;

  template <typename Args>
  void call(const Args& args, Stream& stream);  // under the name of the kernel

 private:
  // Forwards a call. Its work is counted only while the profiler records.
  template <typename Work, typename Call>
  void profiled(const char* name, Work work, Stream& stream, Call call);

  const std::unique_ptr<Backend> backend_;
  StepProfiler& profiler_;
};

}  // namespace mantissa
