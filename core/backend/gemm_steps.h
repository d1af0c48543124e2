// A product with an activation (GemmArgs) by the kernels of gemm and gelu, one after the other: what every device does
// where it has no kernel for both.
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

}  // namespace mantissa
