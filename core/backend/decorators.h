// Backends without computation, and backends that report calls.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "core/kernels/kernel_args.h"
#include "core/profile/step_profiler.h"

namespace mantissa {

// Runs no kernel and touches no memory. A step on it shows the step's exact memory before allocation.
class DryRunBackend : public ForwardsAllKernels<DryRunBackend> {
 public:
  // Caches operands as `like`, which must outlive the object, if not null. `support`: native 8-bit products.
  explicit DryRunBackend(Backend* like = nullptr, Fp8GemmSupport support = Fp8GemmSupport::kNone)
      : like_(like), fp8_gemm_support_(support) {}

  Device device() const override { return {}; }
  bool computes() const override { return false; }
  std::string describe() const override { return "dry run"; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<HostStream>(); }
  Fp8GemmSupport fp8_gemm_support() const override { return fp8_gemm_support_; }
  std::unique_ptr<OperandCache> make_operand_cache() override { return like_ ? like_->make_operand_cache() : nullptr; }

  // These return address space that must not be read: pointers into it are only compared.
  std::shared_ptr<Storage> allocate(size_t bytes, const char*) override {
    allocated_bytes_ += bytes;
    return reserve(bytes);
  }
  std::shared_ptr<Storage> reserve(size_t bytes) override {
    auto* const mark = reinterpret_cast<std::byte*>(uintptr_t{1} << 20);  // only offsets from it are taken
    return std::make_shared<Storage>(mark, bytes, Device{}, nullptr);
  }
  std::shared_ptr<Storage> allocate_staging(size_t bytes, const char*) override { return reserve(bytes); }
  MemoryUse memory_use() const override { return {allocated_bytes_, allocated_bytes_}; }  // sum over allocate()

  void copy(const Tensor&, const Tensor&, Stream&) override {}
  void upload(const void*, const Tensor&, Stream&) override {}
  void download(const Tensor& src, void* host, Stream&) override { std::memset(host, 0, src.size_bytes()); }

  template <typename Args>
  void call(const Args&, Stream&) {}
  void call(const GemmArgs& args, Stream&);

 private:
  Backend* const like_;
  const Fp8GemmSupport fp8_gemm_support_;
  size_t allocated_bytes_ = 0;
};

// The operand formats of matrix products.
enum class ProductFormat : uint8_t { kF32, kTf32, kBF16, kF16, kF8, kF4, kF64 };
inline constexpr ProductFormat kAllProductFormats[] = {ProductFormat::kF32, ProductFormat::kTf32, ProductFormat::kBF16,
                                                       ProductFormat::kF16, ProductFormat::kF8,   ProductFormat::kF4,
                                                       ProductFormat::kF64};

std::string_view name(ProductFormat format);  // "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "fp64"

// A tensor of a call. Equal addresses mean the same memory.
struct Operand {
  bool defined = false;
  DType dtype = DType::kF32;
  Shape shape;
  uintptr_t address = 0;
  size_t bytes() const { return defined ? static_cast<size_t>(shape.numel() * size_bytes(dtype)) : 0; }
};

// A kernel call of a step as plain data, and a function that makes the same call with other memory.
struct KernelCall {
  std::string_view phase, op;  // "backward", "gemm"
  KernelWork work{};
  ProductFormat format = ProductFormat::kF32;  // of the multiplied operands; meaningless if work.flops is 0
  std::string variant{};                       // settings that change its time: "nt gelu"
  std::vector<Operand> operands;               // in the order of the arguments
  // Makes the call with these tensors in place of the operands. Undefined operands need undefined tensors.
  std::function<void(Backend& backend, Stream& stream, std::span<const Tensor> tensors)> run;

  // Equal for calls that take the same time: op, variant, dtypes, shapes, and operands in the same memory.
  std::string signature() const;
};

// Computes nothing, like DryRunBackend, and reports every call as a KernelCall. `phase`: of the calls, of static
// storage; empty: they are not recorded. `like` and `support`: see DryRunBackend.
std::unique_ptr<Backend> create_recording_backend(std::function<void(KernelCall call)> sink,
                                                  std::function<std::string_view()> phase, Backend* like,
                                                  Fp8GemmSupport support);

// Reports every call to `profiler`, which must outlive it. Captured work makes no calls: capture() throws ConfigError.
std::unique_ptr<Backend> create_profiling_backend(std::unique_ptr<Backend> backend, StepProfiler& profiler);

}  // namespace mantissa
