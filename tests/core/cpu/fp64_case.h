// Tensors of the tests of kernels in fp64, and their comparison with scalar references, which are double as well.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/core/kernels/test_tensor.h"

namespace mantissa::kernel_test {

using Values = std::vector<double>;

inline Tensor fp64(Shape shape, const Values& values) { return make_tensor(DType::kF64, shape, values); }
inline Tensor unwritten(Shape shape) { return make_unwritten(DType::kF64, shape); }

// Each element within `tolerance` times its size, at least 1. A rounding to fp32 would be 1e-8.
inline void expect_each_close(const Tensor& found, const Values& expected, double tolerance, const char* what) {
  const Values values = values_of(found);
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i]))) << what << ", element " << i;
  }
}

}  // namespace mantissa::kernel_test
