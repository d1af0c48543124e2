// RecordingBackend: computes nothing, like DryRunBackend, and reports every call as a KernelCall.
#pragma once

#include <span>

#include "core/backend/backend.h"
#include "core/kernels/kernel_args.h"

namespace mantissa {

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
  std::string variant;                         // settings that change its time: "nt gelu"
  std::vector<Operand> operands;               // in the order of the arguments
  // Makes the call with these tensors in place of the operands. Undefined operands need undefined tensors.
  std::function<void(Backend& backend, Stream& stream, std::span<const Tensor> tensors)> run;

  // Equal for calls that take the same time: op, variant, dtypes, shapes, and operands in the same memory.
  std::string signature() const;
};

// `phase`: of the calls, of static storage; empty: they are not recorded. `like` and `support`: see DryRunBackend.
std::unique_ptr<Backend> create_recording_backend(std::function<void(KernelCall call)> sink,
                                                  std::function<std::string_view()> phase, Backend* like,
                                                  Fp8GemmSupport support);

}  // namespace mantissa
