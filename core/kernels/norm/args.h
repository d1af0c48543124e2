// Layer norm and RMS norm, with an optional residual addition in front, and their derivatives.
#pragma once

#include "core/kernels/kernel_args.h"

namespace mantissa {

enum class Norm : uint8_t {
  kLayer,  // centred, with an optional bias
  kRms,
};

// The rows that a norm works on: all, or heads [first, first + count) out of every `heads` rows, as in packed queries,
// keys and values whose rows are heads. Other rows are neither read nor written. Results per row exist for these rows
// only.
struct HeadRange {
  int64_t heads = 0, first = 0, count = 0;  // heads 0: all rows

  constexpr bool is_all() const { return heads == 0; }
  constexpr int64_t rows_of(int64_t rows) const { return is_all() ? rows : rows / heads * count; }
  // The row of x that is number `index` of the range.
  constexpr int64_t row(int64_t index) const {
    return is_all() ? index : index / count * heads + first + index % count;
  }
};

// y = (s - mean) * rstd * weight + bias over the last axis. x, y (R, C) float; weight, bias (C) float, bias may be
// undefined; mean, rstd (R) fp32. Variance is biased, rstd = 1 / sqrt(var + epsilon). y may be x.
// s = x, unless residual and sum (R, C) float are given (both, or neither). Then sum = x + residual, added in fp32 and
// rounded once, and s is the sum as stored, which the backward pass reads. sum is neither x nor residual.
struct LayerNormForwardArgs {
  static constexpr std::string_view kName = "layer_norm_forward";
  Tensor x{}, residual{}, sum{}, weight{}, bias{}, y{}, mean{}, rstd{};
  float epsilon = 1e-5f;
  HeadRange heads{};

  static auto operands(auto& a) {
    return std::array{&a.x, &a.residual, &a.sum, &a.weight, &a.bias, &a.y, &a.mean, &a.rstd};
  }
};

// dx (R, C) float; d_weight, d_bias (C) fp32, d_bias undefined when there is no bias. `mode` belongs to dx, weight_mode
// and bias_mode to d_weight and d_bias. dx may be dy.
struct LayerNormBackwardArgs {
  static constexpr std::string_view kName = "layer_norm_backward";
  Tensor x{}, dy{}, weight{}, mean{}, rstd{}, dx{}, d_weight{}, d_bias{};
  GradientMode mode = GradientMode::kWrite, weight_mode = GradientMode::kWrite, bias_mode = GradientMode::kWrite;
  HeadRange heads{};

  static auto operands(auto& a) {
    return std::array{&a.x, &a.dy, &a.weight, &a.mean, &a.rstd, &a.dx, &a.d_weight, &a.d_bias};
  }
};

// y = s * rstd * weight, rstd = 1 / sqrt(mean(s^2) + epsilon). Zhang & Sennrich 2019. residual, sum and s as in
// LayerNormForwardArgs.
struct RmsNormForwardArgs {
  static constexpr std::string_view kName = "rms_norm_forward";
  Tensor x{}, residual{}, sum{}, weight{}, y{}, rstd{};
  float epsilon = 1e-5f;
  HeadRange heads{};

  static auto operands(auto& a) { return std::array{&a.x, &a.residual, &a.sum, &a.weight, &a.y, &a.rstd}; }
  // For kernels of both norms: without bias and mean.
  LayerNormForwardArgs as_layer_norm() const { return {x, residual, sum, weight, {}, y, {}, rstd, epsilon, heads}; }
};

struct RmsNormBackwardArgs {
  static constexpr std::string_view kName = "rms_norm_backward";
  Tensor x{}, dy{}, weight{}, rstd{}, dx{}, d_weight{};
  GradientMode mode = GradientMode::kWrite, weight_mode = GradientMode::kWrite;
  HeadRange heads{};

  static auto operands(auto& a) { return std::array{&a.x, &a.dy, &a.weight, &a.rstd, &a.dx, &a.d_weight}; }
  LayerNormBackwardArgs as_layer_norm() const {
    return {x, dy, weight, {}, rstd, dx, d_weight, {}, mode, weight_mode, GradientMode::kWrite, heads};
  }
};

// The rows of x that are worked on, and C.
MANTISSA_DECLARE_KERNEL(LayerNormForwardArgs, Rows)
MANTISSA_DECLARE_KERNEL(LayerNormBackwardArgs, Rows)
MANTISSA_DECLARE_KERNEL(RmsNormForwardArgs, Rows)
MANTISSA_DECLARE_KERNEL(RmsNormBackwardArgs, Rows)

KernelWork work_of(const LayerNormForwardArgs& args);
std::string variant_of(const LayerNormForwardArgs& args);
inline KernelWork work_of(const RmsNormForwardArgs& args) { return work_of(args.as_layer_norm()); }
inline std::string variant_of(const RmsNormForwardArgs& args) { return variant_of(args.as_layer_norm()); }
KernelWork work_of(const LayerNormBackwardArgs& args);
std::string variant_of(const LayerNormBackwardArgs& args);
inline KernelWork work_of(const RmsNormBackwardArgs& args) { return work_of(args.as_layer_norm()); }
inline std::string variant_of(const RmsNormBackwardArgs& args) { return variant_of(args.as_layer_norm()); }

}  // namespace mantissa
