// Entry checks of kernels that map elements or pairs of them.
#include "core/backend/kernel_checks.h"

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

}  // namespace

void check_copy_args(const Tensor& src, const Tensor& dst) {
  check_defined("copy", "src", src);
  check_dtype("copy", "dst", dst, src.dtype());
  check_numel("copy", "dst", dst, src.numel());
}

void check_fill_args(const Tensor& dst, float value) {
  check_defined("fill", "dst", dst);
  MANTISSA_CHECK(is_floating(dst.dtype()) || value == 0.0f, "[fill] a tensor of {} can only be filled with 0, got {}",
                 dst.dtype(), value);
}

void check_args(const CastArgs& args) {
  check_float("cast", "src", args.src);
  check_float("cast", "dst", args.dst);
  check_numel("cast", "dst", args.dst, args.src.numel());
}

void check_args(const SplitArgs& args) {
  constexpr const char* kNames[] = {"parts[0]", "parts[1]", "parts[2]"};
  check_dtype("split", "x", args.x, DType::kF32);
  for (int part = 0; part < args.count(); ++part) {
    check_dtype("split", kNames[part], args.parts[part], DType::kBF16);
    check_numel("split", kNames[part], args.parts[part], args.x.numel());
  }
}

void check_args(const AddArgs& args) {
  check_float("add", "a", args.a);
  check_float("add", "b", args.b);
  check_float("add", "y", args.y);
  check_numel("add", "b", args.b, args.a.numel());
  check_numel("add", "y", args.y, args.a.numel());
}

void check_args(const GeluForwardArgs& args) {
  check_float("gelu", "x", args.x);
  check_dtype("gelu", "y", args.y, args.x.dtype());
  check_numel("gelu", "y", args.y, args.x.numel());
}

void check_args(const GeluBackwardArgs& args) {
  check_float("gelu backward", "x", args.x);
  check_dtype("gelu backward", "dy", args.dy, args.x.dtype());
  check_dtype("gelu backward", "dx", args.dx, args.x.dtype());
  check_numel("gelu backward", "dy", args.dy, args.x.numel());
  check_numel("gelu backward", "dx", args.dx, args.x.numel());
}

Rows check_args(const SwigluForwardArgs& args) { return check_halves("swiglu", args.x, "y", args.y); }

Rows check_args(const SwigluBackwardArgs& args) {
  const Rows half = check_halves("swiglu backward", args.x, "dy", args.dy);
  check_dtype("swiglu backward", "dx", args.dx, args.x.dtype());
  check_numel("swiglu backward", "dx", args.dx, args.x.numel());
  return half;
}

Rows check_args(const RopeArgs& args) {
  const Rows rows = rows_of("rope", "x", args.x);
  check_dtype("rope", "y", args.y, args.x.dtype());
  check_numel("rope", "y", args.y, args.x.numel());
  MANTISSA_CHECK(args.head_dim > 0 && args.head_dim % 2 == 0, "[rope] head_dim must be even and positive, got {}",
                 args.head_dim);
  MANTISSA_CHECK(rows.columns == args.row_heads * args.head_dim,
                 "[rope] x must have shape (R, row_heads*head_dim)=(R, {}*{}), got {}", args.row_heads, args.head_dim,
                 args.x.shape());
  MANTISSA_CHECK(args.rotated_heads >= 0 && args.rotated_heads <= args.row_heads,
                 "[rope] rotated_heads must be in [0, row_heads={}], got {}", args.row_heads, args.rotated_heads);
  MANTISSA_CHECK(args.sequence_length > 0, "[rope] sequence_length must be positive, got {}", args.sequence_length);
  return rows;
}

void check_args(const DropoutArgs& args) {
  check_float("dropout", "x", args.x);
  check_float("dropout", "y", args.y);
  check_numel("dropout", "y", args.y, args.x.numel());
  check_dtype("dropout", "step", args.step, DType::kI32);
  check_numel("dropout", "step", args.step, 1);
  MANTISSA_CHECK(args.probability >= 0.0f && args.probability < 1.0f, "[dropout] probability must be in [0, 1), got {}",
                 args.probability);
  MANTISSA_CHECK(args.elements_per_sample > 0 && args.x.numel() % args.elements_per_sample == 0,
                 "[dropout] x of {} elements must be whole samples of {}", args.x.numel(), args.elements_per_sample);
  MANTISSA_CHECK(args.elements_per_sample <= int64_t{4} << 32, "[dropout] a sample has at most 2^34 elements, got {}",
                 args.elements_per_sample);
}

}  // namespace mantissa
