// Products of a linear layer that the device multiplies from codes of 8 bits, and how their operands lie for that.
#pragma once

#include <array>

#include "core/autograd/tape.h"
#include "core/kernels/gemm/args.h"

namespace mantissa {

// The operands of a product in its order.
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

// Which codes of a matrix are wanted.
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

// Whether such units multiply the product from codes.
bool multiplies_codes(NarrowUnits units, const LinearFormats& formats, Product product, const LayerExtents& extents);

// Decided once a pass. Products whose operands, sizes or results the device's units do not take are not among them, nor
// are those of tensors that wait for their first delayed scale: these multiply values.
class CodeProducts {
 public:
  CodeProducts(const Tape& tape, const LinearFormats& formats, const LayerExtents& extents);

  bool has(Product product) const { return has_[static_cast<size_t>(product)]; }
  // What the product reads of an operand: codes in which what it sums over lies along the rows. Nothing where it
  // multiplies values.
  CodeLayouts layouts(Product product, Role role) const;
  // Whether both products that read x (kActivation), or dy (kGradient), read codes of the same rounding. They do not
  // where blocks have scales: those lie along what a product sums over.
  bool shares(Role role) const;

 private:
  LinearFormats formats_;
  std::array<bool, std::size(kAllProducts)> has_{};
};

// Whether a tensor of this format waits for its first delayed scale in this pass, which only records its amax.
bool is_calibrating(const Tape& tape, TensorFormat format);

// The product of a and b, rounded as `formats` says, without its result.
GemmArgs rounded_product(Product product, const LinearFormats& formats, const RoundedMatrix& a, const RoundedMatrix& b);

}  // namespace mantissa
