// Recipes, and matrices whose blocks differ, for tests of rounding to low-precision formats.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "core/kernels/quantize/args.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/testing/values.h"

namespace mantissa::kernel_test {

constexpr TensorFormat kTensorFormats[] = {
    {Format::kE4M3, Scaling::kDelayed}, {Format::kE5M2, Scaling::kDelayed}, {Format::kE4M3, Scaling::kCurrent},
    {Format::kE5M2, Scaling::kCurrent}, {Format::kE4M3, Scaling::kBlock},   {Format::kE5M2, Scaling::kBlock},
    {Format::kE4M3, Scaling::kMicro},   {Format::kE5M2, Scaling::kMicro},   {Format::kE2M1, Scaling::kTwoLevel}};
constexpr BlockAxis kBlockAxes[] = {BlockAxis::kColumns, BlockAxis::kRows, BlockAxis::kBoth};

// Values over many binades, so that blocks get different scales.
inline std::vector<float> spread_values(int64_t count, uint64_t seed) {
  std::vector<float> values = testing::normal_values(count, seed);
  const std::vector<float> exponents = testing::normal_values(count, seed + 1, 6.0f);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(values[i], static_cast<int>(exponents[i]));
  return values;
}

inline Tensor tensor_of(DType dtype, Shape shape, const std::vector<float>& values) {
  return make_tensor(dtype, shape, std::vector<double>(values.begin(), values.end()));
}

// The values as stored in the tensor.
inline std::vector<float> stored(const Tensor& tensor) {
  const std::vector<double> values = values_of(tensor);
  return std::vector<float>(values.begin(), values.end());
}

// Bit for bit, except for NaN payloads, which depend on the device.
inline bool is_same(BFloat16 actual, float expected) {
  if (std::isnan(expected)) return std::isnan(to_float(actual));
  return actual == from_float<BFloat16>(expected);
}

inline float largest_finite(const std::vector<float>& values) {
  float amax = 0.0f;
  for (const float value : values) amax = std::isfinite(value) ? std::max(amax, std::fabs(value)) : amax;
  return amax;
}

// Bit for bit, except for NaN: a NaN of fp16 has other bits in fp32 on a GPU.
inline void expect_amax(const QuantizeRecord& found, uint32_t expected) {
  if (expected > kInfinityBits) {
    EXPECT_GT(found.amax, kInfinityBits);
  } else {
    EXPECT_EQ(found.amax, expected);
  }
}

// The record of one pass over the values. NaN ranks above Inf, and Inf above all numbers.
inline QuantizeRecord record_of(const std::vector<float>& values) {
  QuantizeRecord record;
  for (const float value : values) {
    record.amax = std::max(record.amax, std::bit_cast<uint32_t>(std::fabs(value)));
    if (!std::isfinite(value)) ++record.non_finite;
  }
  return record;
}

struct QuantizeCase {
  int64_t rows, columns;
  DType dtype;
  TensorFormat format;
  BlockAxis axis;

  std::string text() const {
    constexpr const char* kAxisNames[] = {"columns", "rows", "both"};
    return std::string(name(dtype)) + " (" + std::to_string(rows) + ", " + std::to_string(columns) + ") as " +
           std::string(info(format.format).name) + ", " + std::string(name(format.scaling)) + ", " +
           kAxisNames[static_cast<int>(axis)];
  }
};

}  // namespace mantissa::kernel_test
