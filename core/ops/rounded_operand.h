// Operands of a linear layer's products, rounded to 8-bit or 4-bit formats, as values or as codes for the device.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

struct GemmArgs;

// A layer y (rows, outputs) = x (rows, inputs) W^T [+ bias], y in `dtype`.
struct LayerExtents {
  int64_t rows = 0, inputs = 0, outputs = 0;
  DType dtype = DType::kBF16;
  bool has_bias = false;
};

// Whether these units compute the product from codes.
bool multiplies_codes(Fp8GemmSupport support, const LinearFormats& formats, Product product,
                      const LayerExtents& extents);

// The products of a layer that the device computes from codes. Decided once per pass. Products beyond its units, or
// with a tensor that waits for its first delayed scale, multiply values.
class CodeProducts {
 public:
  CodeProducts(const Tape& tape, const LinearFormats& formats, const LayerExtents& extents);

  bool has(Product product) const { return has_[static_cast<size_t>(product)]; }
  // The layout of the operand's codes that the product reads: the sum runs along rows. Empty for values.
  CodeLayouts layouts(Product product, Role role) const;
  // Whether both products that read x (kActivation) or dy (kGradient) read codes of the same rounding. False with block
  // scales: blocks lie along the dimension that a product sums over.
  bool shares(Role role) const;

 private:
  LinearFormats formats_;
  std::array<bool, std::size(kAllProducts)> has_{};
};

// An operand of a product, and how it is rounded.
struct OperandUse {
  Product product = Product::kForward;
  Role role = Role::kActivation;
  std::optional<TensorFormat> format{};  // std::nullopt: only cast
  DType values = DType::kBF16;           // dtype of the result: bf16 or fp32, the same for both operands of a product
  bool transformed = false;              // by the Hadamard transform along the rows; the other operand must be too
  uint32_t random_site = 0;              // for stochastic rounding
  CodeLayouts codes{};                   // layouts to make instead of values; none: values
};

BlockAxis axis_of(const OperandUse& use);  // axis of the operand's blocks, i.e. of the values that share a scale
// Whether both operands get a Hadamard transform before rounding: weight gradients in nvfp4.
bool is_transformed(const LinearFormats& formats, Product product);
// Whether the operand is rounded stochastically: gradients in nvfp4.
bool is_stochastic(const LinearFormats& formats, Product product, Role role);
// Whether a tensor of this format waits for its first delayed scale. The pass only records its amax, unrounded.
bool is_calibrating(const Tape& tape, TensorFormat format);
// The dtype of the values that the product multiplies, in a layer with compute dtype `compute`. It is fp32 if an
// operand is not rounded in this pass and `compute` is not bf16; else bf16, which holds every number of the formats.
DType values_dtype(const Tape& tape, const LinearFormats& formats, Product product, DType compute);

// x (R, C) as the product reads it. `weight` identifies the layer. ConfigError unless blocks divide x's sizes.
RoundedMatrix round_operand(Tape& tape, const Tensor& x, const Parameter& weight, const OperandUse& use);
// Rounds the weight. `copy`: the weight in the layer's dtype. Kept codes have every layout possible.
RoundedMatrix round_weight(Tape& tape, const Parameter& weight, const Tensor& copy, const OperandUse& use);

// GemmArgs for the product of a and b, rounded as `formats` says. The result c is left undefined.
GemmArgs rounded_product(Product product, const LinearFormats& formats, const RoundedMatrix& a, const RoundedMatrix& b);

}  // namespace mantissa
