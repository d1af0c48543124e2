// Operands of a linear layer's products, rounded to formats of 8 or 4 bits.
#pragma once

#include <optional>

#include "core/ops/code_products.h"

namespace mantissa {

// Which operand of which product, and how it is rounded.
struct OperandUse {
  Product product = Product::kForward;
  Role role = Role::kActivation;
  std::optional<TensorFormat> format{};  // nothing: it is cast only
  DType values = DType::kBF16;           // of the result: bf16 or fp32, the same for both operands of a product
  bool transformed = false;              // by the Hadamard transform along the rows, as must be the other operand
  uint32_t random_site = 0;              // of stochastic rounding
  CodeLayouts codes{};                   // wanted in place of values; none: values
};

// How the values of the operand that share a scale lie.
BlockAxis axis_of(const OperandUse& use);
// Whether both operands of the product are rounded so that a Hadamard transform goes before: weight gradients in nvfp4.
bool is_transformed(const LinearFormats& formats, Product product);
// Whether the operand is rounded stochastically: gradients in nvfp4.
bool is_stochastic(const LinearFormats& formats, Product product, Role role);
// The dtype of the values that the product multiplies in a layer that computes in `compute`: bf16, which holds every
// number of the formats, or fp32 where one operand is not rounded and is not bf16 itself.
DType values_dtype(const LinearFormats& formats, Product product, DType compute);

// x (R, C) as the product multiplies it. `weight` names the layer. ConfigError where x's sizes do not go into the
// format's blocks.
RoundedMatrix round_operand(Tape& tape, const Tensor& x, const Parameter& weight, const OperandUse& use);
// The weight itself, of which `copy` is that of the layer's dtype. Kept codes are made in every
// layout that their blocks allow.
RoundedMatrix round_weight(Tape& tape, const Parameter& weight, const Tensor& copy, const OperandUse& use);

}  // namespace mantissa
