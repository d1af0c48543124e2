// Gaussian error linear unit, tanh and erf forms, and its derivative.
#pragma once

#include "core/kernels/activation/args.h"

namespace mantissa::cpu {

void run(const GeluForwardArgs& args);
void run(const GeluBackwardArgs& args);

// A part of a matrix (R, C).
struct MatrixPart {
  int64_t row, rows, column, columns;
};
// The same for a part of matrices whose arguments were checked, on the calling thread.
void gelu_forward_part(const GeluForwardArgs& args, const MatrixPart& part);
void gelu_backward_part(const GeluBackwardArgs& args, const MatrixPart& part);

}  // namespace mantissa::cpu
