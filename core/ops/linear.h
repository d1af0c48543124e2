// linear: y = x W^T + b; and a linear layer, GELU and the linear layer behind it, with GELU inside of their products.
#pragma once

#include "core/autograd/tape.h"
#include "core/kernels/activation/args.h"

namespace mantissa {

// x (R, K); weight (N, K); bias (N) or nullptr. Returns (R, N) in the dtype that the layer's precision gives to linear
// ops, to which x, weight and bias are cast; the product and the bias are added in fp32 and rounded once. Derivatives:
// dx = dy W, dW = dy^T x (fp32, accumulated over micro-batches), db = column sums of dy. Products of fp32
// numbers are made as the layer's precision says: core/ops/fp32_product.h. Where it says so, operands are rounded
// first: rounded_linear(). ContractError on shapes that do not match.
Var linear(Tape& tape, Var x, Parameter& weight, Parameter* bias);

// The dtype in which linear() computes in the tape's layer with an x of this dtype.
DType linear_dtype(const Tape& tape, DType x, const Parameter& weight);

// gelu of a linear layer's result, as a linear layer takes it whose backward pass makes the gradient of gelu's input in
// the product that makes that of its output otherwise. Where operands are rounded gelu is an op of its own.
struct GeluOutput {
  Var y;         // the value is gelu's output; the gradient that it takes is that of gelu's input
  Tensor input;  // (R, N)
  GeluForm form = GeluForm::kTanh;
};

// gelu(linear(x)), with gelu's input rounded to the dtype of linear as by the two ops, and then as GemmArgs says. For a
// gelu that computes in that dtype.
GeluOutput linear_gelu(Tape& tape, Var x, Parameter& weight, Parameter* bias, GeluForm form);

// linear(gelu), which must compute in gelu's dtype.
Var linear(Tape& tape, GeluOutput x, Parameter& weight, Parameter* bias);

}  // namespace mantissa
