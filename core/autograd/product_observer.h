// ProductObserver: receives the matrix products of the linear layers in a pass, with their operands.
#pragma once

#include <optional>

#include "core/autograd/linear_formats.h"
#include "core/autograd/parameter.h"
#include "core/kernels/quantize/args.h"

namespace mantissa {

// A matrix, rows first: x (R, K), W (N, K), dy (R, N). Valid, in stream order, until the call returns.
struct ObservedOperand {
  Tensor given{};       // before rounding, in the layer's compute dtype
  Tensor multiplied{};  // what the product reads: `given` if not rounded, undefined if it reads codes
  Tensor scale{};       // (1) fp32, the product is divided by it; undefined: 1
  // How it was rounded; std::nullopt: not at all.
  std::optional<TensorFormat> format{};
  BlockAxis axis = BlockAxis::kColumns;
  bool transformed = false;  // by the Hadamard transform along the rows, before rounding
};

struct ObservedProduct {
  const Parameter& weight;  // names the layer
  Product product = Product::kForward;
  ObservedOperand a{}, b{};  // x and W of fprop, dy and W of dgrad, dy and x of wgrad
  Tensor result{};           // y, dx or dW, including bias, activation function and earlier contributions
  Fp32Products fp32_products = Fp32Products::kFp32;  // for fp32 a and b
  bool is_first = true;                              // of the pieces (row by row) in which a layer makes this product
};

class ProductObserver {
 public:
  virtual ~ProductObserver() = default;
  // May queue work on the pass's stream. Must not allocate from its arena.
  virtual void on_product(const ObservedProduct& shown) = 0;
};

}  // namespace mantissa
