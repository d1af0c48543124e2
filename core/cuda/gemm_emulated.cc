#include "core/backend/gemm_steps.h"
#include "core/backend/kernel_checks.h"
#include "core/cpu/gemm.h"
#include "core/cuda/column_sum.h"
#include "core/cuda/emulation/stream_queue.h"
#include "core/cuda/gelu.h"
#include "core/cuda/gemm.h"

namespace mantissa::cuda {
namespace {

// The same bytes without a share in them: queued work does not keep memory alive, as on a GPU.
Tensor borrow(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return Tensor(std::make_shared<Storage>(tensor.raw(), tensor.size_bytes(), tensor.device(), nullptr), tensor.dtype(),
                tensor.shape());
}

}  // namespace

void gemm(const GemmArgs& args, CudaStream& stream) {
  check_args(args);
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
  emulation::enqueue(stream.handle(), [borrowed] { cpu::gemm(borrowed); });
}

std::string gemm_unusable_reason() { return ""; }

std::string describe_gemm() { return "GEMM on the host"; }

}  // namespace mantissa::cuda
