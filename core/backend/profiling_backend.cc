#include "core/backend/profiling_backend.h"

#include "core/backend/all_args.h"
#include "core/kernels/kernel_args.h"

namespace mantissa {
namespace {

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

std::unique_ptr<Backend> create_profiling_backend(std::unique_ptr<Backend> backend, StepProfiler& profiler) {
  return std::make_unique<ProfilingBackend>(std::move(backend), profiler);
}

}  // namespace mantissa
