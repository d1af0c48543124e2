// A matrix multiplication with its expected result, for any dtype.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/linear.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {

// Uniform in [-1, 1], rounded to 8 significant bits (fewer below 2^-7). They are exact in every dtype, so one reference
// serves all. Their products span too many bits for exact sums in fp32.
inline std::vector<double> short_values(size_t n, uint64_t seed) {
  std::vector<double> values = reference::random_values(static_cast<int64_t>(n), seed);
  for (double& value : values) {
    int exponent = 0;
    std::frexp(value, &exponent);
    const int last_bit = std::max(exponent, -6) - 8;
    value = std::ldexp(std::round(std::ldexp(value, -last_bit)), last_bit);
  }
  return values;
}

// A multiplication: inputs, the expected product, and the magnitudes that roundings act on.
struct Problem {
  reference::MatmulShape shape;
  std::vector<double> a, b, product, magnitude;

  explicit Problem(const reference::MatmulShape& s)
      : shape(s),
        a(short_values(s.m * s.k, 1)),
        b(short_values(s.k * s.n, 2)),
        product(reference::matmul(a, b, s)),
        magnitude(reference::matmul(absolute(a), absolute(b), s)) {}

  GemmArgs args(DType dtype) const {
    const auto m = static_cast<int64_t>(shape.m), n = static_cast<int64_t>(shape.n), k = static_cast<int64_t>(shape.k);
    return {.a = make_tensor(dtype, shape.trans_a ? Shape{k, m} : Shape{m, k}, a),
            .b = make_tensor(dtype, shape.trans_b ? Shape{n, k} : Shape{k, n}, b),
            .c = make_unwritten(dtype, {m, n}),
            .bias = {},
            .trans_a = shape.trans_a ? Transpose::kYes : Transpose::kNo,
            .trans_b = shape.trans_b ? Transpose::kYes : Transpose::kNo};
  }
  double steps() const { return kGemmTolerance.steps(static_cast<double>(shape.k)); }
  // For each element, what rounding the product / divisor to c's dtype before a bias is added may change.
  std::vector<double> rounding_before_bias(DType c_dtype, double divisor = 1.0) const {
    std::vector<double> changes(product.size());
    if (!device_under_test().rounds_before_bias()) return changes;
    for (size_t i = 0; i < changes.size(); ++i) {
      changes[i] = operand_rounding(c_dtype).error(std::abs(product[i] / divisor));
    }
    return changes;
  }
  std::string name(const std::string& what) const {
    return fmt::format("{} {}x{}x{}{}{}", what, shape.m, shape.n, shape.k, shape.trans_a ? " a^T" : "",
                       shape.trans_b ? " b^T" : "");
  }
};

}  // namespace mantissa::kernel_test
