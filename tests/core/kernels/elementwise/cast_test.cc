#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/elementwise/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
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

// The same bits; a NaN's payload is its device's own.
template <typename T>
bool same_number(T a, T b) {
  if (std::isnan(to_float(a)) || std::isnan(to_float(b))) return std::isnan(to_float(a)) && std::isnan(to_float(b));
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
void check_from_fp32() {
  const std::vector<float> values = boundary_values<T>();
  const Tensor src = make_elements(values);
  const Tensor dst = make_unwritten(DTypeOf<T>::value, src.shape());
  run(CastArgs{.src = src, .dst = dst});
  const std::vector<T> actual = elements_of<T>(dst);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(same_number(actual[i], from_float<T>(values[i]))) << std::hex << std::bit_cast<uint32_t>(values[i]);
  }
}

template <typename T>
void check_to_fp32() {
  std::vector<T> codes(0x10000);
  for (size_t code = 0; code < codes.size(); ++code) codes[code].bits = static_cast<uint16_t>(code);
  const Tensor src = make_elements(codes);
  const Tensor dst = make_unwritten(DType::kF32, src.shape());
  run(CastArgs{.src = src, .dst = dst});
  const std::vector<float> actual = elements_of<float>(dst);
  for (size_t code = 0; code < codes.size(); ++code) {
    ASSERT_TRUE(same_number(actual[code], to_float(codes[code]))) << std::hex << code;
  }
}

TEST(Cast, RoundsLikeTheScalarConversionAtEveryBoundary) {
  device_under_test().on_each_variant([] {
    check_from_fp32<BFloat16>();
    check_from_fp32<Float16>();
  });
}

TEST(Cast, WidensEveryCodeExactly) {
  device_under_test().on_each_variant([] {
    check_to_fp32<BFloat16>();
    check_to_fp32<Float16>();
  });
}

TEST(Cast, ScalesInFp32BetweenAllDTypesAtOddSizes) {
  constexpr double kScale = 0.3f;
  device_under_test().on_each_variant([&] {
    for (const DType from : kFloatDTypes) {
      for (const DType to : kFloatDTypes) {
        for (const int64_t n : {1, 3, 17, 63, 64, 65, 129}) {
          const Tensor src = make_tensor(from, {n}, random_values(n, 1, -100.0, 100.0));
          const Tensor dst = make_unwritten(to, {n});
          run(CastArgs{.src = src, .dst = dst, .scale = static_cast<float>(kScale)});
          std::vector<double> expected = values_of(src);
          for (double& value : expected) value *= kScale;
          expect_close(dst, expected, absolute(expected), kCastTolerance.steps(), "cast");
        }
      }
    }
  });
}

TEST(Cast, InPlaceAndTheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(50001);
  const std::vector<double> values = random_values(n, 2);
  for (const DType dtype : kFloatDTypes) {
    expect_same_bits_on_every_schedule([&] {
      const Tensor x = make_tensor(dtype, {n}, values);
      run(CastArgs{.src = x, .dst = x, .scale = 1.7f});
      return std::vector<Tensor>{x};
    });
  }
}

TEST(Cast, RefusesOtherSizes) {
  const Tensor src = make_tensor(DType::kF32, {4}, {1, 2, 3, 4});
  expect_contract_error([&] { run(CastArgs{.src = src, .dst = make_unwritten(DType::kBF16, {3})}); },
                        "[cast] dst must have 4 elements, got shape (3)");
  expect_contract_error([&] { run(CastArgs{.src = src, .dst = make_unwritten(DType::kI32, {4})}); },
                        "[cast] dst must be fp32, bf16 or fp16, got i32");
  expect_contract_error([&] { run(CastArgs{.src = src, .dst = Tensor()}); }, "[cast] dst must be given");
}

}  // namespace
}  // namespace mantissa::kernel_test
