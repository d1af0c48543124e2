// linear: y = x W^T + b.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// x (R, K); weight (N, K); bias (N) or nullptr. Returns (R, N) in the dtype that the layer's precision gives to linear
// ops, to which x, weight and bias are cast; the product and the bias are added in fp32 and rounded once. Derivatives:
// dx = dy W, dW = dy^T x (fp32, accumulated over micro-batches), db = column sums of dy. ContractError on shapes that do
// not match.
Var linear(Tape& tape, Var x, Parameter& weight, Parameter* bias);

}  // namespace mantissa
