// The CUDA backend: memory and kernels of one GPU, real or emulated by the linked libraries. Registered as "cuda".

#include <cstring>

#include "core/backend/all_args.h"
#include "core/backend/registry.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/device_models.h"
#include "core/cuda/runtime/runtime.h"
#include "core/cuda/stream.h"
#include "core/cuda/usable_device.h"
#include "core/kernels/check_args.h"
#include "core/kernels/gemm/gemm_cuda.h"
#include "core/profile/range.h"

namespace mantissa::cuda {
namespace {

std::string device_or_gemm_unusable_reason(int index) {
  const std::string reason = unusable_reason(index);
  return reason.empty() ? gemm_unusable_reason() : reason;
}

// Selects the device before anything is allocated on it.
DeviceProperties open_device(int index) {
  if (const std::string reason = device_or_gemm_unusable_reason(index); !reason.empty()) {
    throw ConfigError(fmt::format("[cuda] {}", reason));
  }
  set_device(index);
  return device_properties(index);
}

CopyKind copy_kind(const Tensor& src, const Tensor& dst) {
  if (src.device().kind == Device::Kind::kCpu) return CopyKind::kHostToDevice;
  return dst.device().kind == Device::Kind::kCpu ? CopyKind::kDeviceToHost : CopyKind::kDeviceToDevice;
}

// A stream for a kernel call, and a range with the caller's name until the end of the full expression.
struct StreamInRange {
  Range range;
  CudaStream& stream;
  operator CudaStream&() const { return stream; }
};
StreamInRange in_range(Stream& stream, const char* caller = __builtin_FUNCTION()) {
  return {Range(RangeKind::kOp, caller), as_cuda(stream)};
}

std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

class CudaBackend final : public ForwardsAllKernels<CudaBackend> {
 public:
  // Throws ConfigError if there is no such device, or the kernels were not compiled for its architecture.
  explicit CudaBackend(int device_index)
      : device_{Device::Kind::kCuda, device_index},
        properties_(open_device(device_index)),
        memory_(std::make_shared<DeviceMemory>(device_index)),
        set_up_(memory_, properties_) {
    send_ranges_to_profiler();
  }

  Device device() const override { return device_; }
  std::string describe() const override {
    return fmt::format("cuda: GPU {} ({}, {:.0f} GiB, compute capability {}.{}), driver for CUDA {}, runtime {}, {}",
                       device_.index, properties_.name, static_cast<double>(properties_.total_bytes) / (1 << 30),
                       properties_.major, properties_.minor, version(driver_version()), version(runtime_version()),
                       describe_gemm());
  }
  std::unique_ptr<Stream> create_stream() override {
    auto stream = std::make_unique<CudaStream>(memory_, properties_);
    stream->set_gemm_options(gemm_options_);
    stream->set_attention_choice(attention_choice_);
    return stream;
  }
  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& body) override {
    return capture_graph(as_cuda(stream), body);
  }
  void set_gemm_options(const GemmOptions& options) override { gemm_options_ = options; }
  Fp8GemmSupport fp8_gemm_support() const override {
    return is_emulated() ? Fp8GemmSupport::kNone : cuda::fp8_gemm_support(properties_);
  }
  std::string describe_fp8_gemm_support() const override {
    return is_emulated() ? "cuda.narrow_math = emulated" : cuda::describe_fp8_gemm_support(properties_);
  }
  void set_attention_choice(AttentionChoice choice) override { attention_choice_ = choice; }

  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override {
    auto storage = memory_->allocate(bytes, what);
    set_bytes_async(storage->data(), 0, bytes, set_up_.handle());
    set_up_.synchronize();  // for any stream that uses it first
    return storage;
  }
  std::shared_ptr<Storage> reserve(size_t bytes) override { return memory_->allocate(bytes, "step arena"); }
  MemoryUse memory_use() const override { return {memory_->held_bytes(), memory_->peak_bytes()}; }
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) override try {
    void* const data = allocate_pinned(bytes);
    std::memset(data, 0, bytes);
    return std::make_shared<Storage>(static_cast<std::byte*>(data), bytes, Device{}, [data] { free_pinned(data); });
  } catch (const CudaError& error) {
    throw CudaError(fmt::format("{}; requested for '{}'", error.what(), what));
  }
  void copy(const Tensor& src, const Tensor& dst, Stream& stream) override {
    check_copy_args(src, dst);
    copy_async(dst.raw(), src.raw(), src.size_bytes(), copy_kind(src, dst), in_range(stream).stream.handle());
  }
  void upload(const void* host, const Tensor& dst, Stream& stream) override {
    check_defined("upload", "dst", dst);
    staging_.upload(host, dst.raw(), dst.size_bytes(), in_range(stream));
  }
  void download(const Tensor& src, void* host, Stream& stream) override {
    check_defined("download", "src", src);
    staging_.download(src.raw(), host, src.size_bytes(), in_range(stream));
  }

  template <typename Args>
  void call(const Args& args, Stream& stream) {
    cuda::run(args, in_range(stream, Args::kName.data()));
  }

 private:
  bool is_emulated() const { return gemm_options_.narrow_math == NarrowMath::kEmulated; }

  const Device device_;
  const DeviceProperties properties_;
  std::shared_ptr<DeviceMemory> memory_;
  CudaStream set_up_;  // zeroes new memory
  Staging staging_;
  GemmOptions gemm_options_;
  AttentionChoice attention_choice_ = AttentionChoice::kAuto;
};

const bool kRegistered = register_backend(
    "cuda",
    {.create = [](int index) { return std::make_unique<CudaBackend>(index); },
     .unusable_reason = device_or_gemm_unusable_reason,
     .device_count = device_count,
     .device_identity = [](int index) { return device_properties(index).identity; },
     .datasheet_flops = [](int index, DType dtype,
                           Fp32Math math) { return datasheet_flops(device_properties(index).name, dtype, math); },
     .create_timer = [](Stream& stream) { return make_stream_timer(as_cuda(stream)); },
     .preference = 1});

}  // namespace
}  // namespace mantissa::cuda
