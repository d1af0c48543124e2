// Rounding to low-precision formats against its contract, bit for bit, on every instruction set.
#include "core/cpu/quant/quantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/base/check.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/core/quant/quantize_reference.h"
#include "tests/testing/values.h"

namespace mantissa::cpu {
namespace {

using kernel_test::bytes_of;
using kernel_test::device_under_test;
using kernel_test::elements_of;
using kernel_test::make_record;
using kernel_test::make_tensor;
using kernel_test::make_unwritten;
using kernel_test::read_record;
using testing::QuantizeReference;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr TensorFormat kFormats[] = {
    {Format::kE4M3, Scaling::kDelayed}, {Format::kE5M2, Scaling::kDelayed}, {Format::kE4M3, Scaling::kCurrent},
    {Format::kE5M2, Scaling::kCurrent}, {Format::kE4M3, Scaling::kBlock},   {Format::kE5M2, Scaling::kBlock},
    {Format::kE4M3, Scaling::kMicro},   {Format::kE5M2, Scaling::kMicro},   {Format::kE2M1, Scaling::kTwoLevel}};
constexpr BlockAxis kAxes[] = {BlockAxis::kColumns, BlockAxis::kRows, BlockAxis::kBoth};

// Values over many binades, so that blocks have different scales.
std::vector<float> spread_values(int64_t count, uint64_t seed) {
  std::vector<float> values = testing::normal_values(count, seed);
  const std::vector<float> exponents = testing::normal_values(count, seed + 1, 6.0f);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(values[i], static_cast<int>(exponents[i]));
  return values;
}

Tensor tensor_of(DType dtype, Shape shape, const std::vector<float>& values) {
  return make_tensor(dtype, shape, std::vector<double>(values.begin(), values.end()));
}

// The values as the tensor has them.
std::vector<float> stored(const Tensor& tensor) {
  const std::vector<double> values = kernel_test::values_of(tensor);
  return std::vector<float>(values.begin(), values.end());
}

bool is_same(BFloat16 actual, float expected) {
  if (std::isnan(expected)) return std::isnan(to_float(actual));
  return actual == from_float<BFloat16>(expected);
}

float amax_of(const std::vector<float>& values) {
  float amax = 0.0f;
  for (const float value : values) amax = std::isfinite(value) ? std::max(amax, std::fabs(value)) : amax;
  return amax;
}

void expect_contract(const std::vector<float>& values, int64_t rows, int64_t columns, DType dtype, TensorFormat format,
                     BlockAxis axis) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << columns << " " << name(dtype) << " " << info(format.format).name
                                    << " " << name(format.scaling) << " axis " << static_cast<int>(axis));
  const Tensor src = tensor_of(dtype, {rows, columns}, values);
  const std::vector<float> read = stored(src);
  const float scale = testing::reference_tensor_scale(format, amax_of(read));
  const QuantizeReference expected = testing::quantize_reference(read, rows, columns, format, axis, scale);

  const bool has_scale = has_tensor_scale(format.scaling);
  const Tensor dst = make_unwritten(DType::kBF16, {rows, columns});
  const Tensor record = make_record(QuantizeRecord{.non_finite = 5, .amax = 1});
  quantize({.src = src,
            .dst = dst,
            .format = format,
            .axis = axis,
            .scale = has_scale ? tensor_of(DType::kF32, {1}, {scale}) : Tensor(),
            .record = record});
  const std::vector<BFloat16> actual = elements_of<BFloat16>(dst);
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(is_same(actual[i], expected.values[i]))
        << i << ": " << std::hexfloat << read[i] << " became " << to_float(actual[i]) << ", not " << expected.values[i];
  }
  const auto found = read_record<QuantizeRecord>(record);
  EXPECT_EQ(found.amax, std::max(1u, expected.amax));
  EXPECT_EQ(found.non_finite, 5 + expected.non_finite);

  const Tensor alone = make_record(QuantizeRecord{});
  amax({.x = src, .record = alone});
  EXPECT_EQ(read_record<QuantizeRecord>(alone),
            (QuantizeRecord{.non_finite = expected.non_finite, .amax = expected.amax}));
}

void on_every_recipe(const std::vector<float>& values, int64_t rows, int64_t columns, DType dtype) {
  for (const TensorFormat format : kFormats) {
    for (const BlockAxis axis : kAxes) expect_contract(values, rows, columns, dtype, format, axis);
  }
}

TEST(Quantize, KeepsItsContractForOddAndEvenSizes) {
  device_under_test().on_each_variant([] {
    constexpr int64_t kSizes[][2] = {{1, 1}, {3, 5}, {16, 16}, {32, 64}, {33, 129}, {130, 257}, {5, 2100}};
    for (const auto& [rows, columns] : kSizes) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        on_every_recipe(spread_values(rows * columns, 21), rows, columns, dtype);
      }
    }
  });
}

TEST(Quantize, KeepsItsContractForZerosAndExtremes) {
  device_under_test().on_each_variant([] {
    const int64_t rows = 130, columns = 130;
    std::vector<float> values(static_cast<size_t>(rows * columns), 0.0f);
    on_every_recipe(values, rows, columns, DType::kF32);
    // Each block of its own magnitude, from the smallest subnormal to the largest number.
    for (size_t i = 0; i < values.size(); ++i) {
      const int exponent = -149 + static_cast<int>(i / 16 % 278);
      values[i] =
          std::ldexp(i % 3 == 0 ? -1.0f : 1.75f, exponent - (exponent == 128 ? 1 : 0)) * (i % 5 == 0 ? 0.0f : 1.0f);
    }
    values.back() = std::numeric_limits<float>::max();
    on_every_recipe(values, rows, columns, DType::kF32);
  });
}

TEST(Quantize, ShowsWhatIsNotFinite) {
  device_under_test().on_each_variant([] {
    const int64_t rows = 70, columns = 140;
    std::vector<float> values = spread_values(rows * columns, 33);
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      for (const size_t place : {size_t{0}, size_t{777}, size_t{4000}, values.size() - 1}) {
        std::vector<float> planted = values;
        planted[place] = bad;
        on_every_recipe(planted, rows, columns, DType::kF32);
        on_every_recipe(planted, rows, columns, DType::kBF16);
      }
    }
  });
}

TEST(Quantize, GivesTheSameBitsOnAnySchedule) {
  const int64_t rows = 300, columns = 2304;
  const Tensor src = tensor_of(DType::kBF16, {rows, columns}, spread_values(rows * columns, 8));
  for (const TensorFormat format : kFormats) {
    const bool has_scale = has_tensor_scale(format.scaling);
    for (const BlockAxis axis : kAxes) {
      std::vector<std::byte> first;
      device_under_test().on_each_schedule([&] {
        const Tensor dst = make_unwritten(DType::kBF16, {rows, columns});
        const Tensor record = make_record(QuantizeRecord{});
        quantize({.src = src,
                  .dst = dst,
                  .format = format,
                  .axis = axis,
                  .scale = has_scale ? tensor_of(DType::kF32, {1}, {0.75f}) : Tensor(),
                  .record = record});
        std::vector<std::byte> result = bytes_of(dst);
        for (const std::byte byte : bytes_of(record)) result.push_back(byte);
        if (first.empty()) first = result;
        EXPECT_EQ(result, first);
      });
    }
  }
}

TEST(Quantize, RefusesWhatDoesNotFit) {
  const Tensor src = make_unwritten(DType::kF32, {4, 8}), dst = make_unwritten(DType::kBF16, {4, 8});
  const Tensor scale = make_unwritten(DType::kF32, {1});
  const QuantizeArgs good{.src = src, .dst = dst, .format = {Format::kE4M3, Scaling::kCurrent}, .scale = scale};
  EXPECT_NO_THROW(quantize(good));
  const auto refused = [&](auto&& change) {
    QuantizeArgs args = good;
    change(args);
    EXPECT_THROW(quantize(args), ContractError);
  };
  refused([](QuantizeArgs& args) { args.src = Tensor(); });
  refused([](QuantizeArgs& args) { args.dst = make_unwritten(DType::kF32, {4, 8}); });
  refused([](QuantizeArgs& args) { args.dst = make_unwritten(DType::kBF16, {8, 4}); });
  refused([](QuantizeArgs& args) { args.format.format = Format::kE2M1; });
  refused([](QuantizeArgs& args) { args.format.scaling = Scaling::kBlock; });
  refused([](QuantizeArgs& args) { args.scale = Tensor(); });
  refused([](QuantizeArgs& args) { args.scale = make_unwritten(DType::kF32, {2}); });
  refused([](QuantizeArgs& args) { args.record = make_unwritten(DType::kU8, {4}); });
  EXPECT_THROW(amax({.x = src, .record = Tensor()}), ContractError);
}

}  // namespace
}  // namespace mantissa::cpu
