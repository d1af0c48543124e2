// GELU of a part of a matrix, for kernels that have just computed it.
#pragma once

#include "core/kernels/activation/args.h"

namespace mantissa::cpu {

// A rectangular part of a matrix (R, C).
struct MatrixPart {
  int64_t row, rows, column, columns;
};

// run() for a part of the matrices, on the calling thread. The arguments must have passed check_args().
void gelu_forward_part(const GeluForwardArgs& args, const MatrixPart& part);
void gelu_backward_part(const GeluBackwardArgs& args, const MatrixPart& part);

}  // namespace mantissa::cpu
