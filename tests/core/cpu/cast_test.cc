#include "core/cpu/cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/core/cpu/kernel_check.h"
#include "tests/core/cpu/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::cpu {
namespace {

using reference::random_values;

// fp32 values where a conversion to T can go wrong: every value of T, the midpoint to the next one, and their
// neighbours.
template <typename T>
std::vector<float> boundary_values() {
  std::vector<float> values;
  for (uint32_t code = 0; code < 0x10000u; ++code) {
    const float low = to_float(T{static_cast<uint16_t>(code)});
    const float high = to_float(T{static_cast<uint16_t>(code + 1)});
    const float middle = static_cast<float>(0.5 * (static_cast<double>(low) + static_cast<double>(high)));
    for (const float value : {low, middle}) {
      values.push_back(value);
      values.push_back(std::nextafter(value, std::numeric_limits<float>::infinity()));
      values.push_back(std::nextafter(value, -std::numeric_limits<float>::infinity()));
    }
  }
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {  // ranges that T does not have, NaN payloads
    for (const uint32_t mantissa : {0u, 1u, 0x1000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
      values.push_back(std::bit_cast<float>(exponent << 23 | mantissa));
      values.push_back(std::bit_cast<float>(0x80000000u | exponent << 23 | mantissa));
    }
  }
  return values;
}

template <typename T>
void check_from_fp32() {
  const std::vector<float> values = boundary_values<T>();
  const Tensor src = make_unwritten(DType::kF32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), src.data<float>());
  const Tensor dst = make_unwritten(DTypeOf<T>::value, src.shape());
  cast({.src = src, .dst = dst});
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t expected = from_float<T>(values[i]).bits;
    ASSERT_EQ(dst.data<T>()[i].bits, expected) << std::hex << std::bit_cast<uint32_t>(values[i]);
  }
}

template <typename T>
void check_to_fp32() {
  const Tensor src = make_unwritten(DTypeOf<T>::value, {0x10000});
  for (uint32_t code = 0; code < 0x10000u; ++code) src.data<T>()[code].bits = static_cast<uint16_t>(code);
  const Tensor dst = make_unwritten(DType::kF32, src.shape());
  cast({.src = src, .dst = dst});
  for (uint32_t code = 0; code < 0x10000u; ++code) {
    const float expected = to_float(T{static_cast<uint16_t>(code)});
    uint32_t expected_bits = std::bit_cast<uint32_t>(expected);
    if (std::isnan(expected)) expected_bits |= 0x00400000u;  // arithmetic quiets a signalling NaN
    ASSERT_EQ(std::bit_cast<uint32_t>(dst.data<float>()[code]), expected_bits) << std::hex << code;
  }
}

TEST(Cast, RoundsLikeTheScalarConversionAtEveryBoundary) {
  on_each_target([] {
    check_from_fp32<BFloat16>();
    check_from_fp32<Float16>();
  });
}

TEST(Cast, WidensEveryCodeExactly) {
  on_each_target([] {
    check_to_fp32<BFloat16>();
    check_to_fp32<Float16>();
  });
}

TEST(Cast, ScalesInFp32BetweenAllDTypesAtOddSizes) {
  constexpr double kScale = 0.3f;
  on_each_target([&] {
    for (const DType from : kFloatDTypes) {
      for (const DType to : kFloatDTypes) {
        for (const int64_t n : {1, 3, 17, 63, 64, 65, 129}) {
          const Tensor src = make_tensor(from, {n}, random_values(n, 1, -100.0, 100.0));
          const Tensor dst = make_unwritten(to, {n});
          cast({.src = src, .dst = dst, .scale = static_cast<float>(kScale)});
          std::vector<double> expected = values_of(src);
          for (double& value : expected) value *= kScale;
          expect_close(dst, expected, absolute(expected), kCastTolerance.steps(), "cast");
        }
      }
    }
  });
}

TEST(Cast, InPlaceAndThreadInvariant) {
  const std::vector<double> values = random_values(50001, 2);
  for (const DType dtype : kFloatDTypes) {
    expect_same_for_any_thread_count([&] {
      const Tensor x = make_tensor(dtype, {50001}, values);
      cast({.src = x, .dst = x, .scale = 1.7f});
      return std::vector<Tensor>{x};
    });
  }
}

TEST(Cast, RefusesOtherSizes) {
  const Tensor src = make_tensor(DType::kF32, {4}, {1, 2, 3, 4});
  expect_contract_error([&] { cast({.src = src, .dst = make_unwritten(DType::kBF16, {3})}); },
                        "[cast] dst must have 4 elements, got shape (3)");
  expect_contract_error([&] { cast({.src = src, .dst = make_unwritten(DType::kI32, {4})}); },
                        "[cast] dst must be fp32, bf16 or fp16, got i32");
  expect_contract_error([&] { cast({.src = src, .dst = Tensor()}); }, "[cast] dst must be given");
}

}  // namespace
}  // namespace mantissa::cpu
