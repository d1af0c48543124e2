#include "core/backend/profiling_backend.h"

#include "core/backend/all_args.h"
#include "core/base/error.h"
#include "core/kernels/kernel_args.h"

namespace mantissa {

ProfilingBackend::ProfilingBackend(std::unique_ptr<Backend> backend, StepProfiler& profiler)
    : backend_(std::move(backend)), profiler_(profiler) {}
ProfilingBackend::~ProfilingBackend() = default;

template <typename Work, typename Call>
void ProfilingBackend::profiled(const char* name, Work work, Stream& stream, Call call) {
  if (!profiler_.recording()) return call();
  const StepProfiler::Op op(profiler_, name, work(), &stream);
  call();
}

template <typename Args>
void ProfilingBackend::call(const Args& args, Stream& stream) {
  profiled(
      Args::kName.data(), [&] { return work_of(args); }, stream, [&] { backend_->run(args, stream); });
}

std::unique_ptr<CapturedWork> ProfilingBackend::capture(Stream&, const std::function<void()>&) {
  throw ConfigError(
      "profile: true cannot measure captured work, which makes no kernel calls when it is repeated: give profile=false "
      "or cuda.graph=false");
}

void ProfilingBackend::copy(const Tensor& src, const Tensor& dst, Stream& stream) {
  profiled(
      "copy", [&] { return work_of_copy(src, dst); }, stream, [&] { backend_->copy(src, dst, stream); });
}
void ProfilingBackend::upload(const void* host, const Tensor& dst, Stream& stream) {
  profiled(
      "upload", [&] { return work_of_transfer(dst); }, stream, [&] { backend_->upload(host, dst, stream); });
}
void ProfilingBackend::download(const Tensor& src, void* host, Stream& stream) {
  profiled(
      "download", [&] { return work_of_transfer(src); }, stream, [&] { backend_->download(src, host, stream); });
}

}  // namespace mantissa
