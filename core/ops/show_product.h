// Passes a product with unrounded operands to the observer.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// is_first: see ObservedProduct.
inline void show_unrounded(const Tape& tape, const Parameter& weight, Product product, const Tensor& a, const Tensor& b,
                           const Tensor& result, Fp32Products products, bool is_first = true) {
  tape.show_product({.weight = weight,
                     .product = product,
                     .a = {.given = a, .multiplied = a},
                     .b = {.given = b, .multiplied = b},
                     .result = result,
                     .fp32_products = products,
                     .is_first = is_first});
}

}  // namespace mantissa
