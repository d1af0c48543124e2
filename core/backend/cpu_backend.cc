// The CPU backend: SIMD kernels (Google Highway, best instruction set at run time) on a thread team, GEMM by our
// kernels and oneDNN. Registered as "cpu". Streams are immediate: every call has finished when it returns.
#include <dnnl.h>

#include <cstring>
#include <fstream>

#include "core/backend/all_args.h"
#include "core/backend/registry.h"
#include "core/base/host_memory.h"
#include "core/base/thread_team.h"
#include "core/base/wrapped_text.h"
#include "core/cpu/memory.h"
#include "core/kernels/check_args.h"
#include "core/kernels/fp64/fp64_cpu.h"
#include "core/kernels/gemm/packed_cpu.h"
#include "hwy/highway.h"

namespace mantissa::cpu {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
  }
  return "unknown processor";
}

class CpuBackend final : public ForwardsAllKernels<CpuBackend> {
 public:
  // Throws Error if the CPU lacks the lowest instruction set that the kernels were compiled for.
  explicit CpuBackend(int device_index) : device_{Device::Kind::kCpu, device_index} {
    if (!hwy::SupportedAndGeneratedTargets().empty()) return;
    throw Error(ExitCode::kInternal, fmt::format("[cpu] {} supports none of the instruction sets that the kernels were "
                                                 "compiled for; the lowest is {}",
                                                 cpu_model(), hwy::TargetName(HWY_STATIC_TARGET)));
  }

  Device device() const override { return device_; }
  std::string describe() const override {
    const dnnl_version_t* onednn = dnnl_version();
    return fmt::format("cpu: {}, {}, {}, oneDNN {}.{}.{}", cpu_model(),
                       hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()), counted(threads(), "thread"),
                       onednn->major, onednn->minor, onednn->patch);
  }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<HostStream>(); }
  std::unique_ptr<OperandCache> make_operand_cache() override { return std::make_unique<PackedOperand>(); }

  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override {
    return allocate_host(bytes, what, device_);
  }
  std::shared_ptr<Storage> reserve(size_t bytes) override { return reserve_host(bytes, device_); }
  MemoryUse memory_use() const override {
    return {proc_bytes("/proc/self/status", "VmRSS:", 0), proc_bytes("/proc/self/status", "VmHWM:", 0)};
  }
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) override { return allocate(bytes, what); }
  void copy(const Tensor& src, const Tensor& dst, Stream&) override {
    check_copy_args(src, dst);
    if (src.size_bytes() != 0) std::memcpy(dst.raw(), src.raw(), src.size_bytes());
  }
  void upload(const void* host, const Tensor& dst, Stream&) override {
    check_defined("upload", "dst", dst);
    if (dst.size_bytes() != 0) std::memcpy(dst.raw(), host, dst.size_bytes());
  }
  void download(const Tensor& src, void* host, Stream&) override {
    check_defined("download", "src", src);
    if (src.size_bytes() != 0) std::memcpy(host, src.raw(), src.size_bytes());
  }

  template <typename Args>
  void call(const Args& args, Stream&) {
    if (fp64::is_meant(args)) return fp64::run(args);
    cpu::run(args);
  }

 private:
  Device device_;
};

const bool kRegistered = register_backend(
    "cpu",
    {.create = [](int device_index) { return std::make_unique<CpuBackend>(device_index); }, .computes_on_host = true});

}  // namespace
}  // namespace mantissa::cpu
