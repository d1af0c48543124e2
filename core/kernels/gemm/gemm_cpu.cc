#include "core/kernels/gemm/gemm_cpu.h"

#include "core/base/check.h"
#include "core/kernels/gemm/micro_cpu.h"
#include "core/kernels/gemm/packed_cpu.h"
#include "core/kernels/gemm/steps.h"
#include "core/kernels/reduction/args.h"

namespace mantissa::cpu {

void run(const GemmArgs& args) {
  MANTISSA_CHECK(!args.a.defined() || args.a.dtype() != DType::kU8, "[gemm] a CPU multiplies no codes");
  const bool tf32 = args.fp32_math == Fp32Math::kTf32 && args.a.defined() && args.a.dtype() == DType::kF32;
  return tf32 ? gemm_tf32(args) : gemm(args, preferred_bf16_gemm());
}

const MicroKernel* own_kernel(DType dtype, Bf16Gemm bf16) {
  if (dtype != DType::kBF16 || bf16 == Bf16Gemm::kWidened) return &fp32_micro_kernel();
  return bf16 == Bf16Gemm::kDotProducts ? &bf16_micro_kernel() : nullptr;
}

void gemm(const GemmArgs& args, Bf16Gemm bf16) {
  const bool scaled = args.a_scale.defined() || args.b_scale.defined();
  // oneDNN's product would have to be divided in an extra pass, after it was rounded.
  if (scaled && own_kernel(args.a.dtype(), bf16) == nullptr) bf16 = Bf16Gemm::kWidened;
  if (const MicroKernel* const kernel = own_kernel(args.a.dtype(), bf16)) {
    return gemm_packed(args, *kernel);
  }
  check_args(args);  // as a whole: the messages of its steps would name other kernels
  if (args.bias_gradient.defined()) {
    gemm_then_bias_gradient(args, gemm_library, [](const auto& step) { run(step); });
  } else if (args.activation == GemmActivation::kNone) {
    gemm_library(args);
  } else {
    gemm_in_steps(args, gemm_library, [](const auto& step) { run(step); });
  }
}

}  // namespace mantissa::cpu
