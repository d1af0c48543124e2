// Root-mean-square normalisation over the last axis, in fp32 with one rounding on store:
//   xhat = x rstd,  y = xhat weight,  rstd = 1 / sqrt(mean(x^2) + epsilon).
//
// Backward, with g = weight dy:
//   dx = rstd (g - xhat mean(g xhat)),  d_weight = sum dy xhat over rows,
// the latter as fp32 sums of chunks of rows, then of the chunks in order. Both passes are bound by memory.
//
// Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019.
#include "core/kernels/norm/args.h"

#include "core/kernels/norm/norm_backward_cuda.h"
#include "core/kernels/norm/norm_forward_cuda.h"

namespace mantissa::cuda {

void run(const RmsNormForwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  run_norm_forward<Norm::kRms>({.x = args.x,
                                .residual = args.residual,
                                .sum = args.sum,
                                .weight = args.weight,
                                .y = args.y,
                                .rstd = args.rstd,
                                .epsilon = args.epsilon},
                               rows, stream);
}

void run(const RmsNormBackwardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  run_norm_backward<Norm::kRms>({.x = args.x,
                                 .dy = args.dy,
                                 .weight = args.weight,
                                 .rstd = args.rstd,
                                 .dx = args.dx,
                                 .d_weight = args.d_weight,
                                 .mode = args.mode,
                                 .weight_mode = args.weight_mode},
                                rows, stream);
}

}  // namespace mantissa::cuda
