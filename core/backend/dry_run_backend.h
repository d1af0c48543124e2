// DryRunBackend: runs no kernel and touches no memory. A step on it tells the step's exact memory before allocation.
#pragma once

#include <cstring>

#include "core/backend/backend.h"
#include "core/kernels/gemm/args.h"

namespace mantissa {

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
  void call(const GemmArgs& args, Stream&) {
    if (args.b_cache != nullptr) args.b_cache->plan(args);
  }

 private:
  Backend* const like_;
  const Fp8GemmSupport fp8_gemm_support_;
  size_t allocated_bytes_ = 0;
};

}  // namespace mantissa
