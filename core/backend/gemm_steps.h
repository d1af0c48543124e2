// A product with an activation or a bias gradient (GemmArgs) by the kernels of gemm, gelu and column_sum, one after the
// other: what every device does where it has no kernel for both.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa {

// gemm, gelu_forward and gelu_backward take the arguments of the kernels of their names.
template <typename Gemm, typename GeluForward, typename GeluBackward>
void gemm_in_steps(const GemmArgs& args, Gemm&& gemm, GeluForward&& gelu_forward, GeluBackward&& gelu_backward) {
  GemmArgs product = args;
  product.aux = Tensor();
  product.activation = GemmActivation::kNone;
  if (args.activation == GemmActivation::kGelu) {
    product.c = args.aux;
    gemm(product);
    gelu_forward(GeluForwardArgs{.x = args.aux, .y = args.c, .form = args.form});
  } else {
    gemm(product);
    gelu_backward(GeluBackwardArgs{.x = args.aux, .dy = args.c, .dx = args.c, .form = args.form});
  }
}

// gemm and column_sum take the arguments of the kernels of their names; args.bias_gradient is defined.
template <typename Gemm, typename ColumnSum>
void gemm_then_bias_gradient(const GemmArgs& args, Gemm&& gemm, ColumnSum&& column_sum) {
  GemmArgs product = args;
  product.bias_gradient = Tensor();
  gemm(product);
  column_sum(ColumnSumArgs{.x = args.a, .out = args.bias_gradient, .mode = args.bias_gradient_mode});
}

}  // namespace mantissa
