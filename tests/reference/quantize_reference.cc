#include "tests/reference/quantize_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/core/tensor/format_reference.h"

namespace mantissa::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

FormatReference list_of(Format format) {
  if (format == Format::kE4M3) return FormatReference({4, 3, 7, TopExponent::kNumbersAndOneNan});
  if (format == Format::kE5M2) return FormatReference({5, 2, 15});
  return FormatReference({2, 1, 1, TopExponent::kNumbers});
}

float nearest_value(const FormatReference& list, Format format, float value) {
  if (std::isnan(value)) return kNaN;
  if (std::isinf(value)) return format == Format::kE5M2 ? value : kNaN;
  const uint32_t code = std::min(list.nearest(value), list.finite_count() - 1);
  return std::copysign(static_cast<float>(list.value(code)), value);
}

struct Factors {
  float before, after;
};

// The largest power of two from 2^lowest to 2^highest that leaves amax at or below max.
int largest_exponent(float amax, double max, int lowest, int highest) {
  int exponent = highest;
  while (exponent > lowest && std::ldexp(static_cast<double>(amax), exponent) > max) --exponent;
  return exponent;
}

Factors factors_of(TensorFormat format, double max, float amax, bool finite, float tensor) {
  if (!finite) return {kNaN, kNaN};
  switch (format.scaling) {
    case Scaling::kBlock: {
      const int exponent = amax == 0.0f ? 0 : largest_exponent(amax, max, -126, 126);
      return {std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent)};
    }
    case Scaling::kMicro: {
      const int exponent = largest_exponent(amax, max, -127, 127);
      return {std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent)};
    }
    default: {
      const float block = nearest_value(list_of(Format::kE4M3), Format::kE4M3, amax * tensor / 6.0f);
      return {block == 0.0f ? 0.0f : tensor / block, block};
    }
  }
}

}  // namespace

float reference_tensor_scale(TensorFormat format, float amax) {
  if (format.scaling == Scaling::kBlock || format.scaling == Scaling::kMicro) return 1.0f;
  if (amax == 0.0f || !std::isfinite(amax)) return 1.0f;
  const FormatReference list = list_of(format.format);
  const double max = format.scaling == Scaling::kTwoLevel ? 448.0 * list.max() : list.max();
  return static_cast<float>(max) / amax;
}

std::vector<std::optional<uint8_t>> code_reference(const std::vector<float>& src, Format format, float scale) {
  return code_reference(src, format, std::vector<float>(src.size(), scale));
}

std::vector<std::optional<uint8_t>> code_reference(const std::vector<float>& src, Format format,
                                                   const std::vector<float>& multipliers) {
  const FormatReference list = list_of(format);
  std::vector<std::optional<uint8_t>> codes;
  for (size_t i = 0; i < src.size(); ++i) {
    const float value = src[i] * multipliers[i];
    const uint32_t sign = std::signbit(value) ? 0x80u : 0u;
    if (std::isnan(value) || (std::isinf(value) && format == Format::kE4M3)) {
      codes.emplace_back();
    } else if (std::isinf(value)) {
      codes.emplace_back(sign | list.finite_count());  // after the largest number
    } else {
      codes.emplace_back(sign | std::min(list.nearest(value), list.finite_count() - 1));
    }
  }
  return codes;
}

ScaleOrder scale_order_reference(BlockScaleLayout layout, int64_t rows, int64_t columns) {
  ScaleOrder order{.place = std::vector<int64_t>(static_cast<size_t>(rows * columns), -1)};
  // Appends the scale of rows [row, row + height) and columns [column, column + width), if there are such.
  const auto next = [&](int64_t row, int64_t height, int64_t column, int64_t width) {
    for (int64_t r = row; r < std::min(rows, row + height); ++r) {
      for (int64_t c = column; c < std::min(columns, column + width); ++c) {
        order.place[static_cast<size_t>(r * columns + c)] = order.total;
      }
    }
    ++order.total;
  };
  switch (layout) {
    case BlockScaleLayout::kRowBlocks128:
      for (int64_t column = 0; column < columns; column += 128) {
        for (int64_t row = 0; row < rows; ++row) next(row, 1, column, 128);
      }
      break;
    case BlockScaleLayout::kSquareBlocks128:
      for (int64_t row = 0; row < rows; row += 128) {
        for (int64_t group = 0; group < columns; group += 512) {
          for (int64_t column = group; column < group + 512; column += 128) next(row, 128, column, 128);
        }
      }
      break;
    case BlockScaleLayout::kMicroTiles:
      for (int64_t top = 0; top < rows; top += 128) {
        for (int64_t left = 0; left < columns; left += 128) {
          for (int64_t row = top; row < top + 32; ++row) {
            for (int64_t part = 0; part < 128; part += 32) {
              for (int64_t column = left; column < left + 128; column += 32) next(row + part, 1, column, 32);
            }
          }
        }
      }
      break;
  }
  return order;
}

QuantizeReference quantize_reference(const std::vector<float>& src, int64_t rows, int64_t columns, TensorFormat format,
                                     BlockAxis axis, float scale) {
  QuantizeReference result;
  result.values.resize(src.size());
  result.multipliers.resize(src.size());
  result.inverse_scales.resize(src.size());
  const FormatReference list = list_of(format.format);
  for (const float value : src) {
    result.amax = std::max(result.amax, std::bit_cast<uint32_t>(std::fabs(value)));
    if (!std::isfinite(value)) ++result.non_finite;
  }
  const int64_t length = block_length(format.scaling);
  const int64_t height = length == 0 || axis == BlockAxis::kColumns ? 1 : length;
  const int64_t width = length == 0 || axis == BlockAxis::kRows ? 1 : length;
  for (int64_t top = 0; top < rows; top += height) {
    for (int64_t left = 0; left < columns; left += width) {
      const int64_t bottom = std::min(rows, top + height), right = std::min(columns, left + width);
      const auto each = [&](auto&& visit) {
        for (int64_t r = top; r < bottom; ++r) {
          for (int64_t c = left; c < right; ++c) visit(static_cast<size_t>(r * columns + c));
        }
      };
      Factors factors{scale, 1.0f};
      if (length != 0) {
        float amax = 0.0f;
        bool finite = true;
        each([&](size_t i) {
          finite = finite && std::isfinite(src[i]);
          if (finite) amax = std::max(amax, std::fabs(src[i]));
        });
        factors = factors_of(format, list.max(), amax, finite, scale);
      }
      each([&](size_t i) {
        result.values[i] = nearest_value(list, format.format, src[i] * factors.before) * factors.after;
        result.multipliers[i] = factors.before;
        result.inverse_scales[i] = factors.after;
      });
    }
  }
  return result;
}

}  // namespace mantissa::testing
