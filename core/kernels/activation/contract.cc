// Activation functions of feed-forward layers and their derivatives: checks of operands, FLOP and bytes.
#include "core/kernels/activation/args.h"

#include "core/kernels/check_args.h"

namespace mantissa {
namespace {

// Rows of half, which has half as many columns as x.
Rows check_halves(const char* op, const Tensor& x, const char* what, const Tensor& half) {
  const Rows full = rows_of(op, "x", x);
  const Rows part = rows_of(op, what, half);
  check_dtype(op, what, half, x.dtype());
  MANTISSA_CHECK(full.columns == 2 * part.columns && full.rows == part.rows,
                 "[{}] x must have shape (R, 2*F) for {} (R, F)={}, got {}", op, what, half.shape(), x.shape());
  return part;
}

// One value for each value of x.
void check_pointwise_forward(const char* op, const auto& args) {
  check_float(op, "x", args.x);
  check_dtype(op, "y", args.y, args.x.dtype());
  check_numel(op, "y", args.y, args.x.numel());
}

void check_pointwise_backward(const char* op, const auto& args) {
  check_float(op, "x", args.x);
  check_dtype(op, "dy", args.dy, args.x.dtype());
  check_dtype(op, "dx", args.dx, args.x.dtype());
  check_numel(op, "dy", args.dy, args.x.numel());
  check_numel(op, "dx", args.dx, args.x.numel());
}

}  // namespace

void check_args(const GeluForwardArgs& args) { check_pointwise_forward("gelu", args); }
void check_args(const GeluBackwardArgs& args) { check_pointwise_backward("gelu backward", args); }
void check_args(const ReluSquaredForwardArgs& args) { check_pointwise_forward("relu_squared", args); }
void check_args(const ReluSquaredBackwardArgs& args) { check_pointwise_backward("relu_squared backward", args); }
Rows check_args(const SwigluForwardArgs& args) { return check_halves("swiglu", args.x, "y", args.y); }

Rows check_args(const SwigluBackwardArgs& args) {
  const Rows half = check_halves("swiglu backward", args.x, "dy", args.dy);
  check_dtype("swiglu backward", "dx", args.dx, args.x.dtype());
  check_numel("swiglu backward", "dx", args.dx, args.x.numel());
  return half;
}

}  // namespace mantissa
