// Operands of a linear layer's products, rounded to 8-bit or 4-bit formats.
#pragma once

#include <optional>

#include "core/ops/code_products.h"

namespace mantissa {

// One operand of one product, and how it is rounded.
struct OperandUse {
  Product product = Product::kForward;
  Role role = Role::kActivation;
  std::optional<TensorFormat> format{};  // std::nullopt: only cast
  DType values = DType::kBF16;           // dtype of the result: bf16 or fp32, the same for both operands of a product
  bool transformed = false;              // by the Hadamard transform along the rows; the other operand must be too
  uint32_t random_site = 0;              // for stochastic rounding
  CodeLayouts codes{};                   // layouts to make instead of values; none: values
};

// Axis of the operand's blocks, i.e. of the values that share a scale.
BlockAxis axis_of(const OperandUse& use);
// Whether both operands get a Hadamard transform before rounding: weight gradients in nvfp4.
bool is_transformed(const LinearFormats& formats, Product product);
// Whether the operand is rounded stochastically: gradients in nvfp4.
bool is_stochastic(const LinearFormats& formats, Product product, Role role);
// The dtype of the values that the product multiplies, in a layer that computes in `compute`. It is bf16, which holds
// every number of the formats, or fp32 if one operand is not rounded and `compute` is not bf16.
DType values_dtype(const LinearFormats& formats, Product product, DType compute);

// x (R, C) as the product reads it. `weight` identifies the layer. ConfigError if the format's blocks do not divide x's
// sizes.
RoundedMatrix round_operand(Tape& tape, const Tensor& x, const Parameter& weight, const OperandUse& use);
// Rounds the weight. `copy`: the weight in the layer's dtype. Codes kept in RoundedWeights are made in every layout
// that their blocks allow.
RoundedMatrix round_weight(Tape& tape, const Parameter& weight, const Tensor& copy, const OperandUse& use);

}  // namespace mantissa
