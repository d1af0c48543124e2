// Activation functions of feed-forward layers.
#pragma once

#include "core/autograd/tape.h"
#include "core/kernels/activation/records.h"

namespace mantissa {

std::optional<GeluForm> gelu_form(Activation activation);  // the form of a gelu; nothing for other activations

// Applies the given activation. Shapes are those of the function below.
Var activate(Tape& tape, Var x, Activation activation);

// x * Phi(x), exactly (erf) or by tanh (Hendrycks & Gimpel 2016). Any shape, in the dtype of the layer's precision.
Var gelu(Tape& tape, Var x, GeluForm form);

// silu(gate) * up (Shazeer 2020). x (R, 2*F): gate, then up. Returns (R, F) in the layer's dtype for swiglu.
Var swiglu(Tape& tape, Var x);

// max(x, 0)^2 (So et al. 2021). x has any shape. The result has its shape, in the layer's dtype for relu_squared.
Var relu_squared(Tape& tape, Var x);

// --- for ops that contain gelu
// gelu(x) in x's dtype. Records nothing.
Tensor gelu_of(Tape& tape, const Tensor& x, GeluForm form);

}  // namespace mantissa
