// The CPU's casts keep a NaN's payload as the scalar conversion does, on every instruction set: a vector and its
// remainder give the same bits.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/kernels/elementwise/args.h"
#include "tests/core/kernels/test_tensor.h"

namespace mantissa::cpu {
namespace {

using kernel_test::device_under_test;
using kernel_test::elements_of;
using kernel_test::make_elements;
using kernel_test::make_unwritten;

template <typename T>
void check_narrowing() {
  std::vector<float> nans;
  for (uint32_t payload = 1; payload < 0x800000u; payload = payload * 3 + 1) {
    nans.push_back(std::bit_cast<float>(0x7f800000u | payload));
    nans.push_back(std::bit_cast<float>(0xff800000u | payload));
  }
  const Tensor src = make_elements(nans), dst = make_unwritten(DTypeOf<T>::value, src.shape());
  run(CastArgs{.src = src, .dst = dst});
  const std::vector<T> actual = elements_of<T>(dst);
  for (size_t i = 0; i < nans.size(); ++i) EXPECT_EQ(actual[i].bits, from_float<T>(nans[i]).bits) << i;
}

template <typename T>
void check_widening() {
  std::vector<T> nans;
  for (uint32_t code = 0; code < 0x10000u; ++code) {
    const T value{static_cast<uint16_t>(code)};
    if (std::isnan(to_float(value))) nans.push_back(value);
  }
  const Tensor src = make_elements(nans), dst = make_unwritten(DType::kF32, src.shape());
  run(CastArgs{.src = src, .dst = dst});
  const std::vector<float> actual = elements_of<float>(dst);
  for (size_t i = 0; i < nans.size(); ++i) {
    // Arithmetic quiets a signalling NaN.
    const uint32_t expected = std::bit_cast<uint32_t>(to_float(nans[i])) | 0x00400000u;
    EXPECT_EQ(std::bit_cast<uint32_t>(actual[i]), expected) << i;
  }
}

TEST(CastNaN, KeepsItsPayload) {
  device_under_test().on_each_variant([] {
    check_narrowing<BFloat16>();
    check_narrowing<Float16>();
    check_widening<BFloat16>();
    check_widening<Float16>();
  });
}

}  // namespace
}  // namespace mantissa::cpu
