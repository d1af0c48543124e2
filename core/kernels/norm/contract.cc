// Layer norm and RMS norm, with an optional residual addition in front, and their derivatives: checks of operands, FLOP
// and bytes.
#include "core/kernels/norm/args.h"

#include "core/kernels/check_args.h"

namespace mantissa {
namespace {

// One fp32 statistic for each row.
void check_statistic(const char* op, const char* what, const Tensor& tensor, const Rows& rows) {
  check_dtype(op, what, tensor, DType::kF32);
  check_numel(op, what, tensor, rows.rows);
}

void check_like_x(const char* op, const char* what, const Tensor& tensor, const Tensor& x) {
  check_float(op, what, tensor);
  check_numel(op, what, tensor, x.numel());
}

// The sum that is normalised in place of x, if one is asked for.
void check_sum(const char* op, const Tensor& x, const Tensor& residual, const Tensor& sum) {
  MANTISSA_CHECK(residual.defined() == sum.defined(), "[{}] residual and sum must both be given or neither, got {}", op,
                 residual.defined() ? "residual only" : "sum only");
  if (!sum.defined()) return;
  check_like_x(op, "residual", residual, x);
  check_like_x(op, "sum", sum, x);
}

void check_weight(const char* op, const char* what, const Tensor& weight, const Rows& rows) {
  check_float(op, what, weight);
  check_shape(op, what, "(C)", weight, {rows.columns});
}

void check_weight_gradient(const char* op, const char* what, const Tensor& gradient, const Rows& rows) {
  check_dtype(op, what, gradient, DType::kF32);
  check_shape(op, what, "(C)", gradient, {rows.columns});
}

}  // namespace

Rows check_args(const LayerNormForwardArgs& args) {
  constexpr const char* kOp = "layer_norm";
  const Rows rows = rows_of(kOp, "x", args.x);
  check_sum(kOp, args.x, args.residual, args.sum);
  check_like_x(kOp, "y", args.y, args.x);
  check_weight(kOp, "weight", args.weight, rows);
  if (args.bias.defined()) check_weight(kOp, "bias", args.bias, rows);
  check_statistic(kOp, "mean", args.mean, rows);
  check_statistic(kOp, "rstd", args.rstd, rows);
  return rows;
}

Rows check_args(const LayerNormBackwardArgs& args) {
  constexpr const char* kOp = "layer_norm backward";
  const Rows rows = rows_of(kOp, "x", args.x);
  check_like_x(kOp, "dy", args.dy, args.x);
  check_like_x(kOp, "dx", args.dx, args.x);
  check_weight(kOp, "weight", args.weight, rows);
  check_statistic(kOp, "mean", args.mean, rows);
  check_statistic(kOp, "rstd", args.rstd, rows);
  check_weight_gradient(kOp, "d_weight", args.d_weight, rows);
  if (args.d_bias.defined()) check_weight_gradient(kOp, "d_bias", args.d_bias, rows);
  return rows;
}

Rows check_args(const RmsNormForwardArgs& args) {
  constexpr const char* kOp = "rms_norm";
  const Rows rows = rows_of(kOp, "x", args.x);
  check_sum(kOp, args.x, args.residual, args.sum);
  check_like_x(kOp, "y", args.y, args.x);
  check_weight(kOp, "weight", args.weight, rows);
  check_statistic(kOp, "rstd", args.rstd, rows);
  return rows;
}

Rows check_args(const RmsNormBackwardArgs& args) {
  constexpr const char* kOp = "rms_norm backward";
  const Rows rows = rows_of(kOp, "x", args.x);
  check_like_x(kOp, "dy", args.dy, args.x);
  check_like_x(kOp, "dx", args.dx, args.x);
  check_weight(kOp, "weight", args.weight, rows);
  check_statistic(kOp, "rstd", args.rstd, rows);
  check_weight_gradient(kOp, "d_weight", args.d_weight, rows);
  return rows;
}

KernelWork work_of(const LayerNormBackwardArgs& args) {
  return traffic(bytes_of(args.x, args.dy, args.weight, args.mean, args.rstd) + result_bytes(args.dx, args.mode) +
                 result_bytes(args.d_weight, args.weight_mode) + result_bytes(args.d_bias, args.bias_mode));
}

std::string variant_of(const LayerNormBackwardArgs& a) { return a.mode == GradientMode::kAccumulate ? "+=" : ""; }

KernelWork work_of(const RmsNormBackwardArgs& args) {
  return traffic(bytes_of(args.x, args.dy, args.weight, args.rstd) + result_bytes(args.dx, args.mode) +
                 result_bytes(args.d_weight, args.weight_mode));
}

std::string variant_of(const RmsNormBackwardArgs& a) { return a.mode == GradientMode::kAccumulate ? "+=" : ""; }

}  // namespace mantissa
