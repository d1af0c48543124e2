#include <gtest/gtest.h>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"

namespace mantissa::kernel_test {
namespace {

TEST(Fill, WritesTheRoundedValueEverywhere) {
  for (const DType dtype : kFloatDTypes) {
    for (const int64_t n : {0, 1, 17, 40001}) {
      const Tensor x = make_unwritten(dtype, {n});
      fill(x, 0.3f);
      const double expected = values_of(make_tensor(dtype, {1}, {0.3f}))[0];
      EXPECT_EQ(values_of(x), std::vector<double>(static_cast<size_t>(n), expected));
    }
  }
}

TEST(Fill, IntegersTakeZeroOnly) {
  const Tensor x = make_indices({1, 2, 3});
  expect_contract_error([&] { fill(x, 1.0f); }, "[fill] a tensor of i32 can only be filled with 0, got 1");
  fill(x, 0.0f);
  EXPECT_EQ(elements_of<int32_t>(x), std::vector<int32_t>(3));
}

}  // namespace
}  // namespace mantissa::kernel_test
