// ProductObserver: is shown what the linear layers of a pass multiply, as they multiply it.
#pragma once

#include <optional>

#include "core/autograd/fp32_products.h"
#include "core/autograd/linear_formats.h"
#include "core/autograd/parameter.h"
#include "core/kernels/quantize/args.h"

namespace mantissa {

// A matrix as the layer has it, rows first: x (R, K), W (N, K), dy (R, N). Good until the call returns, as far as the
// stream is concerned.
struct ObservedOperand {
  Tensor given{};       // before it is rounded, in the dtype that the layer computes in
  Tensor multiplied{};  // what the product reads; `given` where nothing is rounded, undefined where it reads codes
  Tensor scale{};       // (1) fp32, which the product is divided by; undefined: 1
  // How it was rounded; nothing: not at all.
  std::optional<TensorFormat> format{};
  BlockAxis axis = BlockAxis::kColumns;
  bool transformed = false;  // by the Hadamard transform along the rows, before it was rounded
};

struct ObservedProduct {
  const Parameter& weight;  // names the layer
  Product product = Product::kForward;
  ObservedOperand a{}, b{};  // x and W of fprop, dy and W of dgrad, dy and x of wgrad
  Tensor
      result{};  // y, dx or dW as the layer has it, with bias and activation function, or earlier contributions, in it
  Fp32Products fp32_products = Fp32Products::kFp32;  // how it is made, where a and b are fp32
  bool is_first = true;                              // of the pieces that a layer makes this product in, row by row
};

class ProductObserver {
 public:
  virtual ~ProductObserver() = default;
  // May queue work on the pass's stream, but take no memory of its arena.
  virtual void on_product(const ObservedProduct& shown) = 0;
};

}  // namespace mantissa
