// Elementwise kernels: fill, add, cast and split.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/elementwise/args.h"
#include "core/tensor/philox.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/bias.h"
#include "tests/reference/random_values.h"

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

// fp32 values at which a conversion to T can go wrong: every value of T, the midpoint to the next, and their
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
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {  // ranges outside T's, NaN payloads
    for (const uint32_t mantissa : {0u, 1u, 0x1000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
      values.push_back(std::bit_cast<float>(exponent << 23 | mantissa));
      values.push_back(std::bit_cast<float>(0x80000000u | exponent << 23 | mantissa));
    }
  }
  return values;
}

// The same bits, except for NaN payloads, which depend on the device.
template <typename T>
bool same_number(T a, T b) {
  if (std::isnan(to_float(a)) || std::isnan(to_float(b))) return std::isnan(to_float(a)) && std::isnan(to_float(b));
  return std::memcmp(&a, &b, sizeof(T)) == 0;  // NOLINT(bugprone-suspicious-memory-comparison): -0 is not 0 here
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

constexpr float kLargest = 0x1.fep127f;  // of bf16

// Every exponent with mantissas that are hard to round, both signs, and random bits.
std::vector<float> cases() {
  std::vector<uint32_t> bits;
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const uint32_t mantissa : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0x18000u, 0x7f7fffu, 0x7f8000u, 0x7fff7fu,
                                    0x7fff80u, 0x7fffffu, 0x400000u, 0x555555u, 0x7f0080u}) {
      bits.push_back(exponent << 23 | mantissa);
      bits.push_back(0x80000000u | bits.back());
    }
  }
  for (uint32_t i = 0; i < 1000; ++i) {
    for (const uint32_t word : philox(7, {i, 0, 0, 0})) bits.push_back(word);
  }
  std::vector<float> values;
  values.reserve(bits.size());
  for (const uint32_t each : bits) values.push_back(std::bit_cast<float>(each));
  return values;
}

// The contract, for one number.
std::vector<float> reference_parts(float x, int count) {
  std::vector<float> parts(static_cast<size_t>(count));
  if (!std::isfinite(x)) {
    parts.back() = x;
    return parts;
  }
  float rest = x;
  for (float& part : parts) {
    part = to_float(from_float<BFloat16>(rest));
    if (std::isinf(part)) part = std::copysign(kLargest, part);
    rest -= part;
  }
  return parts;
}

SplitArgs args_of(const Tensor& x, int count) {
  SplitArgs args{.x = x, .parts = {}};
  for (int part = 0; part < count; ++part) args.parts[part] = make_unwritten(DType::kBF16, x.shape());
  return args;
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST(Split, PartsAreThoseOfTheContract) {
  const std::vector<float> values = cases();
  device_under_test().on_each_variant([&] {
    for (const int count : {2, 3}) {
      const SplitArgs args = args_of(make_elements(values), count);
      run(args);
      for (int part = 0; part < count; ++part) {
        const std::vector<BFloat16> found = elements_of<BFloat16>(args.parts[part]);
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_TRUE(same(to_float(found[i]), reference_parts(values[i], count)[static_cast<size_t>(part)]))
              << count << " parts, number " << part << " of " << values[i];
        }
      }
    }
  });
}

TEST(Split, TheSumIsTheNumber) {
  const std::vector<float> values = cases();
  const Tensor x = make_elements(values);
  for (const int count : {2, 3}) {
    const SplitArgs args = args_of(x, count);
    run(args);
    std::vector<double> sums(values.size());
    for (int part = 0; part < count; ++part) sums = sum_of(sums, values_of(args.parts[part]));
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        EXPECT_TRUE(std::isnan(sums[i]));
      } else if (std::isinf(values[i])) {
        EXPECT_EQ(sums[i], values[i]);
      } else {
        // The remainder of bf16's largest number can be up to twice as large as that of a rounded part.
        const double magnitude = std::abs(values[i]) > kLargest ? 0x1p128 : std::abs(static_cast<double>(values[i]));
        const double left_out = count == 3 ? 0.0 : 0x1p-17 * magnitude;
        EXPECT_LE(std::abs(sums[i] - static_cast<double>(values[i])), std::max(left_out, 0x1p-134)) << values[i];
        const bool has_last_bit = std::abs(values[i]) >= 0x1p-110f;  // above bf16's smallest number
        if (count == 3 && has_last_bit) {
          EXPECT_EQ(sums[i], static_cast<double>(values[i]));
        }
      }
    }
  }
}

TEST(Split, TakesAnySizeAndPlace) {
  for (const Placement placement : kPlacements) {
    const PlacementScope scope(placement);
    for (const int64_t size : {1, 7, 8, 9, 63, 65}) {
      const std::vector<double> values = reference::random_values(static_cast<size_t>(size), 3);
      const SplitArgs args = args_of(make_tensor(DType::kF32, {size}, values), 3);
      run(args);
      const std::vector<double> sums =
          sum_of(sum_of(values_of(args.parts[0]), values_of(args.parts[1])), values_of(args.parts[2]));
      EXPECT_EQ(sums, values_of(args.x)) << size;
    }
  }
}

TEST(Split, TheSameBitsOnEverySchedule) {
  const int64_t size = device_under_test().large(50001);
  const std::vector<double> values = reference::random_values(static_cast<size_t>(size), 4);
  expect_same_bits_on_every_schedule([&] {
    const SplitArgs args = args_of(make_tensor(DType::kF32, {size}, values), 3);
    run(args);
    return std::vector<Tensor>{args.parts[0], args.parts[1], args.parts[2]};
  });
}

TEST(Split, RefusesWhatDoesNotFit) {
  const Tensor x = make_tensor(DType::kF32, {4}, {1, 2, 3, 4}), part = make_unwritten(DType::kBF16, {4});
  expect_contract_error([&] { run(SplitArgs{.x = part, .parts = {part, part}}); }, "[split] x must be fp32, got bf16");
  expect_contract_error([&] { run(SplitArgs{.x = x, .parts = {part, x}}); }, "[split] parts[1] must be bf16, got fp32");
  expect_contract_error([&] { run(SplitArgs{.x = x, .parts = {part}}); }, "[split] parts[1] must be given");
  expect_contract_error(
      [&] {
        run(SplitArgs{.x = x, .parts = {part, part, make_unwritten(DType::kBF16, {3})}});
      },
      "[split] parts[2] must have 4 elements");
}

}  // namespace
}  // namespace mantissa::kernel_test
