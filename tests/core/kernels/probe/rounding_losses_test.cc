#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/kernels/probe/args.h"
#include "core/tensor/format.h"
#include "core/tensor/philox.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/quantize_reference.h"

namespace mantissa::kernel_test {
namespace {

using testing::quantize_reference;

constexpr TensorFormat kFormats[] = {{Format::kE4M3, Scaling::kDelayed}, {Format::kE5M2, Scaling::kDelayed},
                                     {Format::kE4M3, Scaling::kCurrent}, {Format::kE4M3, Scaling::kBlock},
                                     {Format::kE5M2, Scaling::kBlock},   {Format::kE4M3, Scaling::kMicro},
                                     {Format::kE5M2, Scaling::kMicro},   {Format::kE2M1, Scaling::kTwoLevel}};

struct Matrix {
  int64_t rows, columns;
  std::vector<float> values;
};

// Magnitudes over many binades, zeros, subnormals, and values around the formats' largest and smallest numbers.
Matrix make_matrix(int64_t rows, int64_t columns, bool with_non_finite) {
  Matrix matrix{rows, columns, {}};
  for (int64_t i = 0; i < rows * columns; ++i) {
    const PhiloxCounter words = philox(11, {static_cast<uint32_t>(i), 0, 0, 0});
    const float fraction = std::bit_cast<float>((words[0] & 0x807fffffu) | 0x3f800000u);
    float value = std::ldexp(fraction, 9 - static_cast<int>(words[1] % 40));
    if (words[2] % 11 == 0) value = 0.0f;
    if (words[2] % 13 == 0) value = std::bit_cast<float>(words[0] & 0x807fffffu);
    if (words[2] % 7 == 0)
      value = std::ldexp(words[3] % 2 == 0 ? 448.0f : 7.0f * 8192.0f, static_cast<int>(words[3] % 3));
    if (with_non_finite && words[2] % 97 == 0) value = words[3] % 2 == 0 ? NAN : -INFINITY;
    matrix.values.push_back(value);
  }
  return matrix;
}

// All values of a format up to its maximum.
std::vector<double> numbers_of(Format format) {
  std::vector<double> numbers;
  const uint32_t codes = 1u << (info(format).exponent_bits + info(format).mantissa_bits);  // without the sign
  for (uint32_t code = 0; code < codes; ++code) {
    const double value = decode(format, code);
    if (std::isfinite(value)) numbers.push_back(value);
  }
  return numbers;
}

double nearest(const std::vector<double>& numbers, double value) {
  double best = numbers.front();
  for (const double number : numbers) {
    if (std::fabs(number - value) < std::fabs(best - value)) best = number;
  }
  return best;
}

// The multiplier of a block with this amax, found by search. The tests have no e2m1 ties.
double block_multiplier(TensorFormat format, double amax, double tensor) {
  const double max = info(format.format).max;
  if (format.scaling == Scaling::kTwoLevel) {
    const double block = nearest(numbers_of(Format::kE4M3), amax * tensor / 6.0);
    return block == 0.0 ? 0.0 : tensor / block;
  }
  if (amax == 0.0) return 1.0;
  const int least = format.scaling == Scaling::kBlock ? -126 : -127,
            most = format.scaling == Scaling::kBlock ? 126 : 127;
  int exponent = most;
  while (exponent > least && amax * std::ldexp(1.0, exponent) > max) --exponent;
  return std::ldexp(1.0, exponent);
}

struct Block {
  int64_t rows, columns;
};

Block block_of(TensorFormat format, BlockAxis axis, const Matrix& matrix) {
  const int64_t length = block_length(format.scaling);
  if (length == 0) return {matrix.rows, matrix.columns};
  return {axis == BlockAxis::kColumns ? 1 : length, axis == BlockAxis::kRows ? 1 : length};
}

// The largest magnitude of every block; Inf if a value is not finite.
class BlockAmaxes {
 public:
  BlockAmaxes(const Matrix& matrix, Block block) : across_((matrix.columns + block.columns - 1) / block.columns) {
    amaxes_.resize(static_cast<size_t>(across_ * ((matrix.rows + block.rows - 1) / block.rows)));
    for (int64_t i = 0; i < matrix.rows * matrix.columns; ++i) {
      const double magnitude = std::fabs(static_cast<double>(matrix.values[static_cast<size_t>(i)]));
      double& amax = amaxes_[index(i / matrix.columns / block.rows, i % matrix.columns / block.columns)];
      amax = std::max(amax, std::isfinite(magnitude) ? magnitude : INFINITY);
    }
  }
  double at(int64_t row, int64_t column) const { return amaxes_[index(row, column)]; }

 private:
  size_t index(int64_t row, int64_t column) const { return static_cast<size_t>(row * across_ + column); }

  int64_t across_;
  std::vector<double> amaxes_;
};

// Counts the reference quantizer's results for each element.
FormatLosses counted(const Matrix& matrix, TensorFormat format, BlockAxis axis, float scale) {
  const auto rounded = quantize_reference(matrix.values, matrix.rows, matrix.columns, format, axis, scale);
  const FormatInfo& f = info(format.format);
  const Block block = block_of(format, axis, matrix);
  const BlockAmaxes amaxes(matrix, block);
  FormatLosses losses{.elements = matrix.rows * matrix.columns};
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.columns; ++column) {
      const auto index = static_cast<size_t>(row * matrix.columns + column);
      const float value = matrix.values[index], made = rounded.values[index];
      if (value == 0.0f) {
        ++losses.zeros;
        continue;
      }
      if (!std::isfinite(value)) {
        ++losses.non_finite;
        continue;
      }
      const double amax = amaxes.at(row / block.rows, column / block.columns);
      const double multiplier = block_length(format.scaling) == 0 ? scale
                                : std::isfinite(amax)             ? block_multiplier(format, amax, scale)
                                                                  : NAN;
      const double scaled = std::fabs(static_cast<double>(static_cast<float>(value * static_cast<float>(multiplier))));
      // Ties go to the even neighbour: 448 = 14 * 32 is even, 57344 = 7 * 8192 and 6 = 3 * 2 are not.
      const double distance = std::ldexp(1.0, std::ilogb(f.max) - f.mantissa_bits);
      const bool tie_stays = format.format == Format::kE4M3;
      const double limit = f.max + distance / 2.0;
      if (std::isnan(made) || scaled > limit || (scaled == limit && !tie_stays)) {
        ++losses.overflowed;
      } else if (made == 0.0f) {
        ++losses.underflowed;
      } else if (scaled < f.min_normal - f.min_subnormal / 2.0) {  // a tie goes to the normal number, which is even
        ++losses.subnormal;
      }
    }
  }
  return losses;
}

FormatLosses losses_of(const Matrix& matrix, DType dtype, TensorFormat format, BlockAxis axis, float scale,
                       GradientMode mode = GradientMode::kWrite) {
  const Tensor record = make_record(FormatLosses{.elements = 3, .zeros = 3, .underflowed = 3});
  const std::vector<double> values(matrix.values.begin(), matrix.values.end());
  run(RoundingLossesArgs{
      .src = make_tensor(dtype, {matrix.rows, matrix.columns}, values),
      .format = format,
      .axis = axis,
      .scale = has_tensor_scale(format.scaling) ? make_elements(std::vector<float>{scale}) : Tensor(),
      .record = record,
      .mode = mode});
  return fetch_record<FormatLosses>(record);
}

// As stored in a tensor of this dtype.
Matrix stored_in(DType dtype, Matrix matrix) {
  const std::vector<double> values(matrix.values.begin(), matrix.values.end());
  const std::vector<double> kept = values_of(make_tensor(dtype, {matrix.rows, matrix.columns}, values));
  matrix.values.assign(kept.begin(), kept.end());
  return matrix;
}

void expect_counts(DType dtype, const std::vector<std::pair<int64_t, int64_t>>& sizes) {
  device_under_test().on_each_variant([&] {
    for (const auto& [rows, columns] : sizes) {
      const Matrix matrix = stored_in(dtype, make_matrix(rows, columns, rows == 34));
      for (const TensorFormat format : kFormats) {
        for (const BlockAxis axis : {BlockAxis::kColumns, BlockAxis::kRows, BlockAxis::kBoth}) {
          const float scale = format.scaling == Scaling::kTwoLevel ? 0.0117f : 1.37f;
          EXPECT_EQ(losses_of(matrix, dtype, format, axis, scale), counted(matrix, format, axis, scale))
              << name(format.scaling) << " " << info(format.format).name << " (" << rows << ", " << columns << ")";
        }
      }
    }
  });
}

TEST(RoundingLosses, CountsWhatTheQuantiserDoes) {
  expect_counts(DType::kF32, {{1, 1}, {3, 130}, {34, 48}, {130, 131}});
  for (const DType dtype : {DType::kBF16, DType::kF16}) expect_counts(dtype, {{3, 130}, {34, 48}, {129, 20}});
}

TEST(RoundingLosses, ReadsEveryFloat) {
  Matrix matrix{1, 6, {0.0f, 1.0f, 0x1p-9f, 0x1p-11f, 480.0f, 464.0f}};
  for (const DType dtype : kFloatDTypes) {
    EXPECT_EQ(losses_of(matrix, dtype, {Format::kE4M3, Scaling::kDelayed}, BlockAxis::kColumns, 1.0f),
              (FormatLosses{.elements = 6, .zeros = 1, .underflowed = 1, .subnormal = 1, .overflowed = 1}))
        << name(dtype);
  }
}

TEST(RoundingLosses, AddsToTheRecord) {
  const Matrix matrix{1, 2, {0.0f, 1.0f}};
  EXPECT_EQ(losses_of(matrix, DType::kF32, {Format::kE4M3, Scaling::kBlock}, BlockAxis::kColumns, 1.0f,
                      GradientMode::kAccumulate),
            (FormatLosses{.elements = 5, .zeros = 4, .underflowed = 3}));
}

TEST(RoundingLosses, TheSameBitsOnEverySchedule) {
  const int64_t rows = device_under_test().large(512);
  const Matrix matrix = make_matrix(rows, 256, true);
  const std::vector<double> values(matrix.values.begin(), matrix.values.end());
  const Tensor src = make_tensor(DType::kBF16, {rows, 256}, values);
  for (const TensorFormat format : {TensorFormat{Format::kE4M3, Scaling::kBlock}, {Format::kE4M3, Scaling::kMicro}}) {
    expect_same_bits_on_every_schedule([&] {
      const Tensor record = make_record(FormatLosses());
      run(RoundingLossesArgs{.src = src, .format = format, .record = record});
      return std::vector<Tensor>{record};
    });
  }
}

TEST(RoundingLosses, RefusesAMissingScale) {
  const Tensor src = make_tensor(DType::kF32, {1, 2}, {1.0, 2.0}), record = make_record(FormatLosses());
  expect_contract_error(
      [&] {
        run(RoundingLossesArgs{.src = src, .format = {Format::kE4M3, Scaling::kDelayed}, .record = record});
      },
      "needs a tensor's scale, got none");
}

}  // namespace
}  // namespace mantissa::kernel_test
