#include "core/cpu/gemm.h"

#include "core/backend/gemm_steps.h"
#include "core/cpu/column_sum.h"
#include "core/cpu/gelu.h"
#include "core/cpu/gemm_library.h"
#include "core/cpu/gemm_packed.h"

namespace mantissa::cpu {

void gemm(const GemmArgs& args) { gemm(args, preferred_bf16_gemm()); }

const MicroKernel* own_kernel(DType dtype, Bf16Gemm bf16) {
  if (dtype != DType::kBF16 || bf16 == Bf16Gemm::kWidened) return &fp32_micro_kernel();
  return bf16 == Bf16Gemm::kDotProducts ? &bf16_micro_kernel() : nullptr;
}

void gemm(const GemmArgs& args, Bf16Gemm bf16) {
  const bool scaled = args.a_scale.defined() || args.b_scale.defined();
  // oneDNN's product would have to be divided in an extra pass, after it was rounded.
  if (scaled && own_kernel(args.a.dtype(), bf16) == nullptr) bf16 = Bf16Gemm::kWidened;
  if (const MicroKernel* const kernel = own_kernel(args.a.dtype(), bf16)) {
    gemm_packed(args, *kernel);
  } else if (args.bias_gradient.defined()) {
    gemm_then_bias_gradient(args, gemm_library, column_sum);
  } else if (args.activation == GemmActivation::kNone) {
    gemm_library(args);
  } else {
    gemm_in_steps(args, gemm_library, gelu_forward, gelu_backward);
  }
}

}  // namespace mantissa::cpu
