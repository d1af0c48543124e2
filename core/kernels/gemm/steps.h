// A product with an activation or a bias gradient (GemmArgs) by the kernels of gemm, gelu and column_sum, one after the
// other. Every device does this if it has no fused kernel.
#pragma once

#include "core/kernels/activation/args.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/reduction/args.h"

namespace mantissa {

// gemm(args) multiplies. run(args) runs the kernels GeluForwardArgs and GeluBackwardArgs.
template <typename Gemm, typename Run>
void gemm_in_steps(const GemmArgs& args, Gemm&& gemm, Run&& run) {
  GemmArgs product = args;
  product.aux = Tensor();
  product.activation = GemmActivation::kNone;
  if (args.activation == GemmActivation::kGelu) {
    product.c = args.aux;
    gemm(product);
    run(GeluForwardArgs{.x = args.aux, .y = args.c, .form = args.form});
  } else {
    gemm(product);
    run(GeluBackwardArgs{.x = args.aux, .dy = args.c, .dx = args.c, .form = args.form});
  }
}

// run(args) runs the kernel ColumnSumArgs. args.bias_gradient is defined.
template <typename Gemm, typename Run>
void gemm_then_bias_gradient(const GemmArgs& args, Gemm&& gemm, Run&& run) {
  GemmArgs product = args;
  product.bias_gradient = Tensor();
  gemm(product);
  run(ColumnSumArgs{.x = args.a, .out = args.bias_gradient, .mode = args.bias_gradient_mode});
}

}  // namespace mantissa
