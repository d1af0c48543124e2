// Layer norm and RMS norm: checks of operands, FLOP and bytes.
#include "core/kernels/norm/args.h"

#include <fmt/core.h>

#include "core/kernels/check_args.h"

namespace mantissa {
namespace {

void check_like_x(const char* op, const char* what, const Tensor& tensor, const Tensor& x) {
  check_float(op, what, tensor);
  check_numel(op, what, tensor, x.numel());
}

void check_weight(const char* op, const char* what, const Tensor& weight, const Rows& rows) {
  check_float(op, what, weight);
  check_shape(op, what, "(C)", weight, {rows.columns});
}

void check_weight_gradient(const char* op, const char* what, const Tensor& gradient, DType wide, const Rows& rows) {
  check_tensor(op, what, gradient, wide, "(C)", {rows.columns});
}

// One wide number for each row.
void check_statistics(const char* op, const auto& args, const Rows& rows) {
  const DType wide = wide_of(args.x.dtype());
  if constexpr (requires { args.mean; }) check_tensor(op, "mean", args.mean, wide, rows.rows);
  check_tensor(op, "rstd", args.rstd, wide, rows.rows);
}

// The rows of x that the norm works on.
Rows check_rows(const char* op, const auto& args) {
  const Rows rows = rows_of(op, "x", args.x);
  const HeadRange& range = args.heads;
  MANTISSA_CHECK(range.is_all() || (range.heads > 0 && rows.rows % range.heads == 0 && range.first >= 0 &&
                                    range.count > 0 && range.first + range.count <= range.heads),
                 "[{}] x must have rows of whole heads, some of {}, got {} rows and heads [{}, {})", op, range.heads,
                 rows.rows, range.first, range.first + range.count);
  return {range.rows_of(rows.rows), rows.columns};
}

double share(const HeadRange& range) {
  return range.is_all() ? 1.0 : static_cast<double>(range.count) / static_cast<double>(range.heads);
}

std::string describe(const HeadRange& range) {
  return range.is_all() ? "" : fmt::format("{} heads of {}", range.count, range.heads);
}

Rows check_forward(const char* op, const auto& args) {
  const Rows rows = check_rows(op, args);
  MANTISSA_CHECK(args.residual.defined() == args.sum.defined(),
                 "[{}] residual and sum must both be given or neither, got {}", op,
                 args.residual.defined() ? "residual only" : "sum only");
  if (args.sum.defined()) {
    check_like_x(op, "residual", args.residual, args.x);
    check_like_x(op, "sum", args.sum, args.x);
  }
  check_like_x(op, "y", args.y, args.x);
  check_weight(op, "weight", args.weight, rows);
  if constexpr (requires { args.bias; }) {
    if (args.bias.defined()) check_weight(op, "bias", args.bias, rows);
  }
  check_statistics(op, args, rows);
  return rows;
}

Rows check_backward(const char* op, const auto& args) {
  const Rows rows = check_rows(op, args);
  check_like_x(op, "dy", args.dy, args.x);
  check_like_x(op, "dx", args.dx, args.x);
  check_weight(op, "weight", args.weight, rows);
  check_statistics(op, args, rows);
  check_weight_gradient(op, "d_weight", args.d_weight, wide_of(args.x.dtype()), rows);
  if constexpr (requires { args.d_bias; }) {
    if (args.d_bias.defined()) check_weight_gradient(op, "d_bias", args.d_bias, wide_of(args.x.dtype()), rows);
  }
  return rows;
}

}  // namespace

Rows check_args(const LayerNormForwardArgs& args) { return check_forward("layer_norm", args); }
Rows check_args(const LayerNormBackwardArgs& args) { return check_backward("layer_norm backward", args); }
Rows check_args(const RmsNormForwardArgs& args) { return check_forward("rms_norm", args); }
Rows check_args(const RmsNormBackwardArgs& args) { return check_backward("rms_norm backward", args); }

KernelWork work_of(const LayerNormForwardArgs& args) {
  return traffic(bytes_of(args.weight, args.bias, args.mean, args.rstd) +
                 share(args.heads) * bytes_of(args.x, args.residual, args.sum, args.y));
}

KernelWork work_of(const LayerNormBackwardArgs& args) {
  return traffic(bytes_of(args.weight, args.mean, args.rstd) +
                 share(args.heads) * (bytes_of(args.x, args.dy) + result_bytes(args.dx, args.mode)) +
                 result_bytes(args.d_weight, args.weight_mode) + result_bytes(args.d_bias, args.bias_mode));
}

std::string variant_of(const LayerNormForwardArgs& args) { return describe(args.heads); }
std::string variant_of(const LayerNormBackwardArgs& args) {
  return (args.mode == GradientMode::kAccumulate ? "+=" : "") + describe(args.heads);
}

}  // namespace mantissa
