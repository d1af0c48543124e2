// Shapes and dtypes for the tests of both norms, and their kernels under one signature.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "core/kernels/norm/args.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"

namespace mantissa::kernel_test {

struct NormDTypes {
  DType x, y, weight;
};

// One dtype, and the mixtures of autocast: fp32 parameters with 16-bit activations, and a change of dtype on the way.
constexpr NormDTypes kNormDTypes[] = {
    {DType::kF32, DType::kF32, DType::kF32},  {DType::kBF16, DType::kBF16, DType::kBF16},
    {DType::kF16, DType::kF16, DType::kF16},  {DType::kBF16, DType::kBF16, DType::kF32},
    {DType::kF32, DType::kBF16, DType::kF32}, {DType::kF16, DType::kF32, DType::kF16},
};

constexpr std::pair<int64_t, int64_t> kNormShapes[] = {{1, 1}, {3, 3}, {5, 17}, {2, 63}, {4, 64}, {33, 65}, {17, 129}};

// Shapes that a GPU divides differently, with and without vector accesses: many chunks of rows, rows of several warps,
// the longest rows that fit into registers, and longer rows.
constexpr std::pair<int64_t, int64_t> kLargeNormShapes[] = {{300, 8}, {3, 1031}, {3, 1032}, {1, 8192}, {1, 16392}};

struct NormSumDTypes {
  DType x, residual, sum, y, weight;
};

// A residual stream in fp32 and a branch in 16 bits, either way round; one dtype; a sum in a third dtype.
constexpr NormSumDTypes kNormSumDTypes[] = {
    {DType::kF32, DType::kBF16, DType::kF32, DType::kBF16, DType::kF32},
    {DType::kF32, DType::kBF16, DType::kF32, DType::kF32, DType::kF32},
    {DType::kF16, DType::kF32, DType::kF32, DType::kF16, DType::kF32},
    {DType::kF32, DType::kF32, DType::kF32, DType::kF32, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kBF16, DType::kBF16, DType::kBF16},
    {DType::kF32, DType::kF32, DType::kF16, DType::kBF16, DType::kF32},
};

// Whether a device must handle it like a ready sum.
constexpr bool has_dtype_of_an_addend(const NormSumDTypes& dtypes) {
  return dtypes.sum == dtypes.x || dtypes.sum == dtypes.residual;
}

// Calls check(dtypes, rows, columns) for sums on every variant; large sums at every alignment of operands.
template <typename Check>
void for_each_norm_sum(const Check& check) {
  const auto check_all = [&](const auto& shapes) {
    for (const NormSumDTypes& dtypes : kNormSumDTypes) {
      for (const auto& [rows, columns] : shapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check(dtypes, rows, columns);
      }
    }
  };
  device_under_test().on_each_variant([&] { check_all(kNormShapes); });
  for (const Placement placement : kPlacements) {
    const PlacementScope scope(placement);
    check_all(kLargeNormShapes);
  }
}

// RMS norm takes neither bias nor mean.
inline void run_norm(Norm norm, const LayerNormForwardArgs& a) {
  if (norm == Norm::kLayer) return run(a);
  run(RmsNormForwardArgs{.x = a.x,
                         .residual = a.residual,
                         .sum = a.sum,
                         .weight = a.weight,
                         .y = a.y,
                         .rstd = a.rstd,
                         .epsilon = a.epsilon,
                         .heads = a.heads});
}

inline void run_norm(Norm norm, const LayerNormBackwardArgs& a) {
  if (norm == Norm::kLayer) return run(a);
  run(RmsNormBackwardArgs{.x = a.x,
                          .dy = a.dy,
                          .weight = a.weight,
                          .rstd = a.rstd,
                          .dx = a.dx,
                          .d_weight = a.d_weight,
                          .mode = a.mode,
                          .weight_mode = a.weight_mode,
                          .heads = a.heads});
}

// |xhat| plus the effect of an error of the mean, relative to mean |x|.
inline std::vector<double> xhat_magnitude(const std::vector<double>& x, const std::vector<double>& mean,
                                          const std::vector<double>& rstd, size_t columns) {
  std::vector<double> magnitude(x.size());
  for (size_t r = 0; r < rstd.size(); ++r) {
    double mean_absolute = 0.0;
    for (size_t c = 0; c < columns; ++c) mean_absolute += std::abs(x[r * columns + c]) / static_cast<double>(columns);
    for (size_t c = 0; c < columns; ++c) {
      magnitude[r * columns + c] = (std::abs(x[r * columns + c] - mean[r]) + mean_absolute) * rstd[r];
    }
  }
  return magnitude;
}

struct NormGradientMagnitudes {
  std::vector<double> dx, d_weight;
};

// The magnitudes of dx = rstd (g - mean g - xhat mean(g xhat)) and d_weight = sum dy xhat, term by term.
inline NormGradientMagnitudes gradient_magnitudes(const std::vector<double>& xhat, const std::vector<double>& dy,
                                                  const std::vector<double>& weight, const std::vector<double>& rstd) {
  const size_t columns = weight.size();
  const double n = static_cast<double>(columns);
  NormGradientMagnitudes out{std::vector<double>(dy.size()), std::vector<double>(columns)};
  for (size_t r = 0; r < rstd.size(); ++r) {
    double mean_g = 0.0, mean_g_xhat = 0.0;
    for (size_t c = 0; c < columns; ++c) {
      const size_t i = r * columns + c;
      mean_g += std::abs(dy[i] * weight[c]) / n;
      mean_g_xhat += std::abs(dy[i] * weight[c]) * xhat[i] / n;
      out.d_weight[c] += std::abs(dy[i]) * xhat[i];
    }
    for (size_t c = 0; c < columns; ++c) {
      const size_t i = r * columns + c;
      out.dx[i] = rstd[r] * (std::abs(dy[i] * weight[c]) + mean_g + xhat[i] * mean_g_xhat);
    }
  }
  return out;
}

}  // namespace mantissa::kernel_test
