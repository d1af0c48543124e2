// gelu: x * Phi(x), exactly (erf) or by the tanh approximation (Hendrycks & Gimpel 2016).
#pragma once

#include "core/autograd/tape.h"
#include "core/kernels/activation/args.h"

namespace mantissa {

// x of any shape. The result has its shape, in the dtype that the layer's precision gives to gelu.
Var gelu(Tape& tape, Var x, GeluForm form);

// --- for ops that contain gelu
// gelu(x) in x's dtype. Records nothing.
Tensor gelu_of(Tape& tape, const Tensor& x, GeluForm form);

}  // namespace mantissa
