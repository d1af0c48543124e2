// rounded_linear: a linear layer with 8-bit or 4-bit product operands.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// linear() with the operands of its three products rounded as `formats` says. Each product accumulates in fp32. The
// result, the bias and its gradient are not rounded further than in linear(). Shapes are linear()'s; the
// caller has checked them.
Var rounded_linear(Tape& tape, Var x, Parameter& weight, Parameter* bias, DType dtype, const LinearFormats& formats);

}  // namespace mantissa
