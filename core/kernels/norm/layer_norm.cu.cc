// Layer normalisation over the last axis, in fp32 with one rounding on store:
//   xhat = (x - mean) rstd,  y = xhat weight + bias,  rstd = 1 / sqrt(var + epsilon), var = mean((x - mean)^2).
// Mean first, then the variance of the row that is already in registers: E[x^2] - mean^2 cancels when |mean| >>
// deviation.
//
// Backward, with g = weight dy:
//   dx = rstd (g - mean(g) - xhat mean(g xhat)),  d_weight = sum dy xhat,  d_bias = sum dy over rows,
// the latter two as fp32 sums of chunks of rows, then of the chunks in order. Both passes are bound by memory.
//
// Source: Ba, Kiros, Hinton, "Layer Normalization", 2016.
#include "core/kernels/norm/args.h"

#include "core/kernels/norm/norm_backward_cuda.h"
#include "core/kernels/norm/norm_forward_cuda.h"

namespace mantissa::cuda {

void run(const LayerNormForwardArgs& args, CudaStream& stream) {
  run_norm_forward<Norm::kLayer>(args, check_args(args), stream);
}

void run(const LayerNormBackwardArgs& args, CudaStream& stream) {
  run_norm_backward<Norm::kLayer>(args, check_args(args), stream);
}

}  // namespace mantissa::cuda
