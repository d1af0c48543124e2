// ProductObserver: is shown what the linear layers of a pass multiply, as they multiply it.
#pragma once

#include <optional>

#include "core/autograd/linear_formats.h"
#include "core/autograd/parameter.h"
#include "core/backend/quantize_args.h"

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

class ProductObserver {
 public:
  virtual ~ProductObserver() = default;
  // `weight` names the layer. a, b: x and W of fprop, dy and W of dgrad, dy and x of wgrad. `result`: y, dx or dW as
  // the layer has it, with bias and activation function, or earlier contributions, in it. May queue work on the pass's
  // stream, but take no memory of its arena.
  virtual void on_product(const Parameter& weight, Product product, const ObservedOperand& a, const ObservedOperand& b,
                          const Tensor& result) = 0;
};

}  // namespace mantissa
