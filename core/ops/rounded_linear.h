// rounded_linear: a linear layer whose products multiply operands of 8 or 4 bits.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// linear() with the operands of its three products rounded as `formats` says, each product accumulated in fp32. The
// result, the bias and its gradient are those of linear(): not rounded further. Shapes are linear()'s, and checked.
Var rounded_linear(Tape& tape, Var x, Parameter& weight, Parameter* bias, DType dtype, const LinearFormats& formats);

}  // namespace mantissa
