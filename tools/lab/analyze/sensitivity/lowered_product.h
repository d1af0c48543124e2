// LoweredProduct: one product of a linear layer, exact and with its operands in a lower format.
#pragma once

#include <optional>

#include "core/autograd/tape.h"
#include "core/quant/probe_records.h"
#include "core/quant/exponent_histogram.h"

namespace mantissa {

// fp32: x (R, K), dy (R, N); the weight is (N, K).
struct LayerOperands {
  const Parameter& weight;
  Tensor x{}, dy{};
  float gradient_scale = 1.0f;  // that a dtype has of dy, a power of two: fp16's loss scale

  const Tensor& given(Role role) const {
    return role == Role::kActivation ? x : role == Role::kGradient ? dy : weight.weight;
  }
};

// y (R, N), dx (R, K) or dW (N, K), without bias and earlier contributions.
struct LoweredProduct {
  Tensor value;                 // fp32
  FormatLosses losses[2];       // of the operands as roles_of() has them
  double weight_error_squares;  // |Q(W) - W|^2; 0 where W is no operand
};

// In fp32.
Tensor exact_product(Tape& tape, const LayerOperands& operands, Product product);
// As a layer that computes in fp32 makes it where the product's operands have these formats. ConfigError where sizes do
// not go into their blocks. Blocks.
LoweredProduct lowered_product(Tape& tape, const LayerOperands& operands, Product product,
                               const LinearFormats& formats);
// As a layer that computes in `dtype` makes it, its result rounded to that. Blocks.
LoweredProduct lowered_product(Tape& tape, const LayerOperands& operands, Product product, DType dtype);

}  // namespace mantissa
