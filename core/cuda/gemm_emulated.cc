#include "core/cuda/gemm_emulated.h"

#include "core/backend/gemm_steps.h"
#include "core/backend/kernel_checks.h"
#include "core/cpu/gemm.h"
#include "core/cpu/tf32.h"
#include "core/cuda/column_sum.h"
#include "core/cuda/emulation/stream_queue.h"
#include "core/cuda/gelu.h"
#include "core/cuda/gemm.h"
#include "core/tensor/half.h"

namespace mantissa::cuda {
namespace {

EmulatedGemm replacement;

// The same bytes without a share in them: queued work does not keep memory alive, as on a GPU.
Tensor borrow(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return Tensor(std::make_shared<Storage>(tensor.raw(), tensor.size_bytes(), tensor.device(), nullptr), tensor.dtype(),
                tensor.shape());
}

// What the codes stand for, in a dtype that has all of it.
Tensor decoded(const Tensor& codes, Format format, DType dtype) {
  auto* const data = new std::byte[static_cast<size_t>(codes.numel() * size_bytes(dtype))];
  const auto storage = std::make_shared<Storage>(data, static_cast<size_t>(codes.numel() * size_bytes(dtype)),
                                                 codes.device(), [data] { delete[] data; });
  const Tensor values(storage, dtype, codes.shape());
  dispatch(dtype, [&]<typename T>() {
    T values_of[256];
    for (uint32_t code = 0; code < 256; ++code) values_of[code] = from_float<T>(decode(format, code));
    for (int64_t i = 0; i < codes.numel(); ++i) values.data<T>()[i] = values_of[codes.data<uint8_t>()[i]];
  });
  return values;
}

// A product as the library computes it.
void multiply(GemmArgs args) {
  if (args.a.dtype() == DType::kU8) {
    const DType dtype = args.c.dtype() == DType::kF16 ? DType::kF16 : DType::kBF16;
    args.a = decoded(args.a, args.a_format, dtype);
    args.b = decoded(args.b, args.b_format, dtype);
  }
  if (cpu::asks_for_tf32(args)) return cpu::gemm_tf32(args);
  cpu::gemm(args);
}

}  // namespace

void replace_emulated_gemm(EmulatedGemm multiply) { replacement = std::move(multiply); }

void gemm(const GemmArgs& args, CudaStream& stream) {
  check_args(args);
  if (replacement) return replacement(args, stream);
  if (args.activation != GemmActivation::kNone) {
    return gemm_in_steps(
        args, [&](const GemmArgs& product) { gemm(product, stream); },
        [&](const GeluForwardArgs& gelu) { gelu_forward(gelu, stream); },
        [&](const GeluBackwardArgs& gelu) { gelu_backward(gelu, stream); });
  }
  if (args.bias_gradient.defined()) {
    return gemm_then_bias_gradient(
        args, [&](const GemmArgs& product) { gemm(product, stream); },
        [&](const ColumnSumArgs& sums) { column_sum(sums, stream); });
  }
  GemmArgs borrowed = args;
  for (Tensor GemmArgs::*operand :
       {&GemmArgs::a, &GemmArgs::b, &GemmArgs::c, &GemmArgs::bias, &GemmArgs::a_scale, &GemmArgs::b_scale}) {
    borrowed.*operand = borrow(args.*operand);
  }
  emulation::enqueue(stream.handle(), [borrowed] { multiply(borrowed); });
}

std::string gemm_unusable_reason() { return ""; }

std::string describe_gemm() { return "GEMM on the host"; }

NarrowUnits narrow_units(const DeviceProperties&) { return NarrowUnits::kTensorScaled; }

std::string describe_narrow_units(const DeviceProperties&) { return describe_gemm(); }

}  // namespace mantissa::cuda
