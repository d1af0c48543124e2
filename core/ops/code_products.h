// Selects the products of a linear layer that the device computes from 8-bit codes, and the layout of their operands.
#pragma once

#include <array>

#include "core/autograd/tape.h"
#include "core/kernels/gemm/args.h"

namespace mantissa {

// Operand a and operand b of a product.
struct ProductRoles {
  Role a, b;
};
constexpr ProductRoles roles_of(Product product) {
  switch (product) {
    case Product::kForward:
      return {Role::kActivation, Role::kWeight};
    case Product::kInputGradient:
      return {Role::kGradient, Role::kWeight};
    case Product::kWeightGradient:
      break;
  }
  return {Role::kGradient, Role::kActivation};
}

// Layouts in which codes of a matrix are needed.
struct CodeLayouts {
  bool plain = false;
  bool transposed = false;
  bool any() const { return plain || transposed; }
};

// A layer y (rows, outputs) = x (rows, inputs) W^T [+ bias], y in `dtype`.
struct LayerExtents {
  int64_t rows = 0, inputs = 0, outputs = 0;
  DType dtype = DType::kBF16;
  bool has_bias = false;
};

// Whether these units compute the product from codes.
bool multiplies_codes(Fp8GemmSupport support, const LinearFormats& formats, Product product,
                      const LayerExtents& extents);

// Decided once per pass. Excludes products whose operands, sizes or results the device's units do not support, and
// products with a tensor that waits for its first delayed scale. Excluded products multiply values.
class CodeProducts {
 public:
  CodeProducts(const Tape& tape, const LinearFormats& formats, const LayerExtents& extents);

  bool has(Product product) const { return has_[static_cast<size_t>(product)]; }
  // The layout of the operand's codes that the product reads: the dimension that it sums over lies along the rows.
  // Empty if the product multiplies values.
  CodeLayouts layouts(Product product, Role role) const;
  // Whether both products that read x (kActivation) or dy (kGradient) read codes of the same rounding. False with block
  // scales: blocks lie along the dimension that a product sums over.
  bool shares(Role role) const;

 private:
  LinearFormats formats_;
  std::array<bool, std::size(kAllProducts)> has_{};
};

// Whether a tensor of this format waits for its first delayed scale. This pass then only records its amax.
bool is_calibrating(const Tape& tape, TensorFormat format);

// GemmArgs for the product of a and b, rounded as `formats` says. The result c is left undefined.
GemmArgs rounded_product(Product product, const LinearFormats& formats, const RoundedMatrix& a, const RoundedMatrix& b);

}  // namespace mantissa
