// Decoding of 8-bit codes, and the random Hadamard transform.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/kernels/quantize/args.h"
#include "core/quant/narrow_format.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/quantize/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace codes_test {

// ---- Decoding of 8-bit codes. quantize_codes_test.cc tests encoding.

constexpr Format kFormats[] = {Format::kE4M3, Format::kE5M2};

// All codes, repeated.
Tensor all_codes(int64_t n) {
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < n; ++i) codes.push_back(static_cast<uint8_t>(i * 7 % 256));
  return make_elements(codes);
}

// Encodes the values in the format.
Tensor codes_of(const std::vector<float>& values, Format format, float scale) {
  std::vector<uint8_t> codes;
  codes.reserve(values.size());
  for (const float value : values) {
    codes.push_back(
        static_cast<uint8_t>(encode(format, round_to(narrow_format(format), value * scale), Saturation::kNo)));
  }
  return make_elements(codes);
}

void expect_contract(DType dtype, int64_t n, Format format, float scale_value) {
  SCOPED_TRACE(fmt::format("{}, {} elements of {}, scale {}", info(format).name, n, dtype, scale_value));
  const Tensor codes = all_codes(n), scale = make_elements<float>({scale_value});
  const Tensor dst = make_unwritten(dtype, {n});
  run(FromCodesArgs{.codes = codes, .dst = dst, .format = format, .scale = scale});
  std::vector<double> quotients;
  for (const uint8_t code : elements_of<uint8_t>(codes)) {
    quotients.push_back(static_cast<double>(decode(format, code) / scale_value));
  }
  const std::vector<float> expected = stored(make_tensor(dtype, {n}, quotients)), actual = stored(dst);
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(actual[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i])) << i;
    }
  }
}

TEST(Codes, KeepTheirContractForOddAndEvenSizes) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        for (const Format format : kFormats) {
          for (const int64_t n : {0, 1, 15, 16, 17, 33, 127, 4099, 16389}) expect_contract(dtype, n, format, 3.0f);
        }
      }
    }
  });
}

TEST(Codes, KeepTheirContractForManyScales) {
  device_under_test().on_each_variant([] {
    for (const Format format : kFormats) {
      for (const float scale : {1.0f, 0x1p-40f, 0x1.234568p40f, 448.0f / 0.07f, 57344.0f / 1.3e-6f}) {
        expect_contract(DType::kBF16, 1001, format, scale);
      }
    }
  });
}

// The ranks of a job rely on this: a product's operand is the same whether the weight was rounded directly or went
// through codes first.
TEST(Codes, LeaveTheOperandOfAProductAsItIs) {
  device_under_test().on_each_variant([] {
    for (const Format format : kFormats) {
      const int64_t rows = 37, columns = 64;
      const Tensor weight = tensor_of(DType::kBF16, {rows, columns}, spread_values(rows * columns, 7));
      for (const float scale_value : {0.37f, 17.0f, 448.0f / 0.083f, 1e6f}) {
        const Tensor scale = make_elements<float>({scale_value});
        const Tensor codes = codes_of(stored(weight), format, scale_value);
        const Tensor gathered = make_unwritten(DType::kBF16, {rows, columns});
        run(FromCodesArgs{.codes = codes, .dst = gathered, .format = format, .scale = scale});
        const auto operand = [&](const Tensor& of) {
          std::vector<uint32_t> bits;
          for (const float value : stored(of)) {
            bits.push_back(std::bit_cast<uint32_t>(round_to(narrow_format(format), value * scale_value)));
          }
          return bits;
        };
        EXPECT_EQ(operand(gathered), operand(weight)) << info(format).name << ", scale " << scale_value;
      }
    }
  });
}

TEST(Codes, TheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(140001);
  const Tensor codes = all_codes(n), scale = make_elements<float>({5.5f});
  expect_same_bits_on_every_schedule([&] {
    const Tensor dst = make_unwritten(DType::kBF16, {n});
    run(FromCodesArgs{.codes = codes, .dst = dst, .format = Format::kE4M3, .scale = scale});
    return std::vector<Tensor>{dst};
  });
}

// The scale is read when the kernel runs.
TEST(Codes, FollowTheScaleFromRunToRun) {
  const Tensor codes = codes_of(std::vector<float>(17, 3.0f), Format::kE4M3, 1.0f);
  const Tensor scale = make_elements<float>({1.0f}), dst = make_unwritten(DType::kF32, {17});
  RepeatedWork work([&] { run(FromCodesArgs{.codes = codes, .dst = dst, .format = Format::kE4M3, .scale = scale}); });
  for (const float value : {1.0f, 4.0f, 0.5f}) {
    set_element(scale, 0, static_cast<double>(value));
    work.run();
    EXPECT_EQ(elements_of<float>(dst)[16], 3.0f / value);
  }
}

TEST(Codes, RefuseWhatDoesNotFit) {
  const Tensor x = make_tensor(DType::kF32, {4}, {1, 2, 3, 4}), scale = make_elements<float>({1.0f});
  const Tensor codes = make_unwritten(DType::kU8, {4});
  expect_contract_error([&] { run(FromCodesArgs{.codes = codes.slice(0, 3), .dst = x, .scale = scale}); },
                        "[from_codes] codes must have 4 elements");
  expect_contract_error([&] { run(FromCodesArgs{.codes = codes, .dst = x, .format = Format::kE2M1, .scale = scale}); },
                        "[from_codes] codes are e4m3 or e5m2, got e2m1");
  expect_contract_error([&] { run(FromCodesArgs{.codes = x, .dst = x, .scale = scale}); },
                        "[from_codes] codes must be u8");
  expect_contract_error([&] { run(FromCodesArgs{.codes = codes, .dst = x, .scale = x}); },
                        "[from_codes] scale must have 1 elements");
}

// ---- The random Hadamard transform: against its matrix in double, and bit for bit against the butterflies of its
// contract.

using reference::random_values;

constexpr size_t kLength = 16;

// (-1)^((j0 and j1) xor (j2 and j3)), with the bits of j.
double sign(size_t j) { return ((j & j >> 1) ^ (j >> 2 & j >> 3)) & 1 ? -1.0 : 1.0; }

// Element (i, j) of Sylvester's matrix: -1 if i and j share an odd number of set bits.
double sylvester(size_t i, size_t j) { return __builtin_popcount(static_cast<unsigned>(i & j)) % 2 ? -1.0 : 1.0; }

// sum over j of term(i, j) x[j] / 4, for each column and each 16 rows.
template <typename Term>
std::vector<double> transform(const std::vector<double>& x, size_t columns, const Term& term) {
  std::vector<double> y(x.size());
  for (size_t at = 0; at < x.size(); ++at) {
    const size_t row = at / columns, column = at % columns, i = row % kLength;
    for (size_t j = 0; j < kLength; ++j) y[at] += term(i, j) * x[(row - i + j) * columns + column] / 4.0;
  }
  return y;
}

std::vector<double> reference_of(const std::vector<double>& x, size_t columns) {
  return transform(x, columns, [](size_t i, size_t j) { return sylvester(i, j) * sign(j); });
}

std::vector<double> magnitude_of(const std::vector<double>& x, size_t columns) {
  return transform(absolute(x), columns, [](size_t, size_t) { return 1.0; });
}

// The contract's computation in fp32.
std::vector<float> butterflies(const std::vector<double>& x, size_t columns) {
  std::vector<float> y(x.begin(), x.end());
  const size_t rows = x.size() / columns;
  const auto at = [&](size_t row, size_t column) -> float& { return y[row * columns + column]; };
  for (size_t column = 0; column < columns; ++column) {
    for (size_t row = 0; row < rows; ++row) at(row, column) *= static_cast<float>(sign(row % kLength));
    for (const size_t distance : {1u, 2u, 4u, 8u}) {
      for (size_t row = 0; row < rows; ++row) {
        if (row & distance) continue;
        const float a = at(row, column), b = at(row + distance, column);
        at(row, column) = a + b;
        at(row + distance, column) = a - b;
      }
    }
    for (size_t row = 0; row < rows; ++row) at(row, column) /= 4.0f;
  }
  return y;
}

Tensor transformed(const Tensor& x, DType dtype) {
  Tensor y = make_unwritten(dtype, x.shape());
  run(HadamardArgs{.x = x, .y = y});
  return y;
}

TEST(Hadamard, IsTheMatrixAndTheContractsButterflies) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType from : kFloatDTypes) {
        for (const DType to : kFloatDTypes) {
          for (const int64_t rows : {16, 48}) {
            for (const int64_t columns : {1, 3, 4, 17, 64, 132}) {
              const Tensor x = make_tensor(from, {rows, columns}, random_values(rows * columns, 1));
              const Tensor y = transformed(x, to);
              const std::vector<double> values = values_of(x);
              const auto width = static_cast<size_t>(columns);
              // Four additions per result; signs and quarters are exact.
              expect_close(y, reference_of(values, width), magnitude_of(values, width), 4, "y");
              const std::vector<float> exact = butterflies(values, width);
              const Tensor rounded = make_tensor(to, y.shape(), std::vector<double>(exact.begin(), exact.end()));
              ASSERT_EQ(bytes_of(y), bytes_of(rounded)) << rows << " x " << columns;
            }
          }
        }
      }
    }
  });
}

// a^T b = y(a)^T y(b), the product along the rows.
TEST(Hadamard, LeavesProductsAsTheyAre) {
  constexpr int64_t kRows = 64, kM = 5, kN = 7;
  const std::vector<double> a = random_values(kRows * kM, 2), b = random_values(kRows * kN, 3);
  const auto product = [](const std::vector<double>& x, const std::vector<double>& y, size_t i, size_t j) {
    double sum = 0.0;
    for (size_t r = 0; r < kRows; ++r) sum += x[r * kM + i] * y[r * kN + j];
    return sum;
  };
  const Tensor from_a = make_tensor(DType::kF32, {kRows, kM}, a), from_b = make_tensor(DType::kF32, {kRows, kN}, b);
  const std::vector<double> ya = values_of(transformed(from_a, DType::kF32));
  const std::vector<double> yb = values_of(transformed(from_b, DType::kF32));
  for (size_t i = 0; i < kM; ++i) {
    for (size_t j = 0; j < kN; ++j) {
      // Each element of ya and yb, a sum of 16 values of at most 1 over 4, has four fp32 roundings.
      const double allowed = kRows * 2.0 * 4.0 * 0x1p-24 * 4.0 * 4.0;
      EXPECT_NEAR(product(ya, yb, i, j), product(values_of(from_a), values_of(from_b), i, j), allowed);
    }
  }
}

// The purpose: an outlier is spread over its 16 rows, and so are equal values.
TEST(Hadamard, SpreadsAnOutlierAndAConstant) {
  std::vector<double> outlier(32, 0.0);
  outlier[5] = 8.0;
  for (size_t row = 0; row < 32; ++row) {
    EXPECT_EQ(std::abs(values_of(transformed(make_tensor(DType::kBF16, {32, 1}, outlier), DType::kBF16))[row]),
              row < 16 ? 2.0 : 0.0);
  }
  for (const double value :
       values_of(transformed(make_tensor(DType::kF32, {16, 1}, std::vector<double>(16, 3.0)), DType::kF32))) {
    EXPECT_EQ(std::abs(value), 3.0);
  }
}

TEST(Hadamard, WhatIsNotFiniteReachesItsSixteenRowsAndNoMore) {
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      const Tensor x = make_tensor(DType::kBF16, {48, 8}, random_values(48 * 8, 6));
      set_element(x, 20 * 8 + 3, bad);
      const std::vector<double> y = values_of(transformed(x, DType::kBF16));
      for (size_t i = 0; i < y.size(); ++i) {
        const bool reached = i % 8 == 3 && i / 8 / 16 == 1;
        EXPECT_EQ(std::isfinite(y[i]), !reached) << i;
      }
    }
  }
}

TEST(Hadamard, TheSameBitsOnEverySchedule) {
  const int64_t columns = device_under_test().large(2051);
  const std::vector<double> values = random_values(64 * columns, 5);
  for (const DType dtype : kFloatDTypes) {
    expect_same_bits_on_every_schedule([&] {
      return std::vector<Tensor>{transformed(make_tensor(dtype, {64, columns}, values), dtype)};
    });
  }
}

TEST(Hadamard, RefusesWhatDoesNotFit) {
  const Tensor x = make_unwritten(DType::kF32, {16, 2});
  expect_contract_error([&] { run(HadamardArgs{.x = x, .y = x}); }, "[hadamard] y must not be x");
  expect_contract_error(
      [&] {
        run(HadamardArgs{.x = x, .y = make_unwritten(DType::kF32, {32, 1})});
      },
      "[hadamard] y must have shape");
  const Tensor odd = make_unwritten(DType::kF32, {17, 2});
  expect_contract_error(
      [&] {
        run(HadamardArgs{.x = odd, .y = make_unwritten(DType::kF32, {17, 2})});
      },
      "[hadamard] x must have a multiple of 16 rows, got 17");
}

}  // namespace codes_test
}  // namespace mantissa::kernel_test
