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
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

constexpr float kLargest = 0x1.fep127f;  // of bf16

// Every exponent with mantissas where roundings go wrong, of both signs; and random bits.
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
  for (const uint32_t each : bits) values.push_back(std::bit_cast<float>(each));
  return values;
}

// The contract, one number at a time.
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
        // What follows bf16's largest number is up to twice as large as what follows a part that is rounded.
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
