#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/kernels/elementwise/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/bias.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

TEST(Add, AgreesWithTheReferenceForAllDTypesAtOddSizes) {
  device_under_test().on_each_variant([] {
    for (const DType a_dtype : kFloatDTypes) {
      for (const DType b_dtype : kFloatDTypes) {
        for (const DType y_dtype : kFloatDTypes) {
          for (const int64_t n : {1, 3, 17, 63, 65, 129}) {
            const Tensor a = make_tensor(a_dtype, {n}, random_values(n, 1));
            const Tensor b = make_tensor(b_dtype, {n}, random_values(n, 2));
            const Tensor y = make_unwritten(y_dtype, {n});
            run(AddArgs{.a = a, .b = b, .y = y});
            const std::vector<double> expected = reference::add(values_of(a), values_of(b));
            expect_close(y, expected, absolute(expected), kAddTolerance.steps(), "y");
          }
        }
      }
    }
  });
}

TEST(Add, ResultMayReplaceAnOperandAndTheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(40001);
  const std::vector<double> a_values = random_values(n, 1), b_values = random_values(n, 2);
  for (const DType dtype : kFloatDTypes) {
    const auto compute = [&](int replaced) {
      const Tensor a = make_tensor(dtype, {n}, a_values), b = make_tensor(dtype, {n}, b_values);
      const Tensor y = replaced == 0 ? a : replaced == 1 ? b : make_unwritten(dtype, {n});
      run(AddArgs{.a = a, .b = b, .y = y});
      return std::vector<Tensor>{y};
    };
    expect_same_bits_on_every_schedule([&] { return compute(2); });
    EXPECT_EQ(bytes_of(compute(0)[0]), bytes_of(compute(2)[0]));
    EXPECT_EQ(bytes_of(compute(1)[0]), bytes_of(compute(2)[0]));
  }
}

TEST(Add, NonFiniteValuesPropagate) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  device_under_test().on_each_variant([&] {
    for (const DType dtype : kFloatDTypes) {
      const Tensor a = make_tensor(dtype, {4}, {NAN, kInf, kInf, 1.0});
      const Tensor b = make_tensor(dtype, {4}, {1.0, 1.0, -kInf, -kInf});
      const Tensor y = make_unwritten(dtype, {4});
      run(AddArgs{.a = a, .b = b, .y = y});
      const std::vector<double> values = values_of(y);
      EXPECT_TRUE(std::isnan(values[0]));
      EXPECT_EQ(values[1], kInf);
      EXPECT_TRUE(std::isnan(values[2]));
      EXPECT_EQ(values[3], -kInf);
    }
  });
}

}  // namespace
}  // namespace mantissa::kernel_test
