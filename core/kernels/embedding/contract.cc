// Token and position embedding, and rotary position embedding (RoPE): checks of operands, FLOP and bytes; RoPE's
// frequencies.
#include "core/kernels/embedding/args.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/kernels/documents.h"

namespace mantissa {
namespace {

void check_table(const char* op, const char* what, const Tensor& table, int64_t min_rows, int64_t columns) {
  check_float(op, what, table);
  MANTISSA_CHECK(table.shape().rank() == 2 && table.dim(1) == columns && table.dim(0) >= min_rows,
                 "[{}] {} must have shape (>= {}, C)=(>= {}, {}), got {}", op, what, min_rows, min_rows, columns,
                 table.shape());
}

void check_sequence(const char* op, int64_t rows, int64_t sequence_length) {
  MANTISSA_CHECK(sequence_length > 0 && rows % sequence_length == 0,
                 "[{}] sequence_length must divide the {} rows, got {}", op, rows, sequence_length);
}

void check_position_table(const char* op, const char* what, const Tensor& table, int64_t sequence_length,
                          const Rows& rows) {
  check_sequence(op, rows.rows, sequence_length);
  check_table(op, what, table, sequence_length, rows.columns);
}

// `rows` rows of a table.
double row_bytes(const Tensor& table, int64_t rows) {
  return bytes_of(table) * static_cast<double>(rows) / static_cast<double>(table.dim(0));
}

}  // namespace

Rows check_args(const EmbeddingForwardArgs& args) {
  constexpr const char* kOp = "embedding";
  const Rows rows = rows_of(kOp, "y", args.y);
  check_table(kOp, "token_table", args.token_table, 1, rows.columns);
  check_tensor(kOp, "tokens", args.tokens, DType::kI32, rows.rows);
  check_starts(kOp, args.starts, rows.rows, args.sequence_length);
  if (args.position_table.defined()) {
    check_position_table(kOp, "position_table", args.position_table, args.sequence_length, rows);
  }
  return rows;
}

Rows check_args(const EmbeddingBackwardArgs& args) {
  constexpr const char* kOp = "embedding backward";
  const Rows rows = rows_of(kOp, "dy", args.dy);
  check_table(kOp, "d_token_table", args.d_token_table, 1, rows.columns);
  check_dtype(kOp, "d_token_table", args.d_token_table, wide_of(args.dy.dtype()));
  check_tensor(kOp, "tokens", args.tokens, DType::kI32, rows.rows);
  check_starts(kOp, args.starts, rows.rows, args.sequence_length);
  if (args.d_position_table.defined()) {
    check_position_table(kOp, "d_position_table", args.d_position_table, args.sequence_length, rows);
    check_dtype(kOp, "d_position_table", args.d_position_table, wide_of(args.dy.dtype()));
  }
  return rows;
}

Rows check_args(const RopeArgs& args) {
  const Rows rows = rows_of("rope", "x", args.x);
  check_tensor("rope", "y", args.y, args.x.dtype(), args.x.numel());
  MANTISSA_CHECK(args.head_dim > 0 && args.head_dim % 2 == 0, "[rope] head_dim must be even and positive, got {}",
                 args.head_dim);
  MANTISSA_CHECK(rows.columns == args.row_heads * args.head_dim,
                 "[rope] x must have shape (R, row_heads*head_dim)=(R, {}*{}), got {}", args.row_heads, args.head_dim,
                 args.x.shape());
  MANTISSA_CHECK(args.rotated_heads >= 0 && args.rotated_heads <= args.row_heads,
                 "[rope] rotated_heads must be in [0, row_heads={}], got {}", args.row_heads, args.rotated_heads);
  MANTISSA_CHECK(args.sequence_length > 0, "[rope] sequence_length must be positive, got {}", args.sequence_length);
  check_starts("rope", args.starts, rows.rows, args.sequence_length);
  return rows;
}

KernelWork work_of(const EmbeddingForwardArgs& args) {
  double bytes = bytes_of(args.tokens, args.y) + row_bytes(args.token_table, args.tokens.numel());
  if (args.position_table.defined()) {
    bytes += row_bytes(args.position_table, args.sequence_length) + bytes_of(args.starts);
  }
  return traffic(bytes);
}

KernelWork work_of(const EmbeddingBackwardArgs& args) {
  const int64_t rows = std::min(args.tokens.numel(), args.d_token_table.dim(0));
  const double tokens = args.token_mode == GradientMode::kWrite ? bytes_of(args.d_token_table)
                                                                : 2.0 * row_bytes(args.d_token_table, rows);
  return traffic(bytes_of(args.tokens, args.starts, args.dy) + tokens +
                 result_bytes(args.d_position_table, args.position_mode));
}

std::string variant_of(const EmbeddingBackwardArgs& a) { return a.token_mode == GradientMode::kAccumulate ? "+=" : ""; }

KernelWork work_of(const RopeArgs& args) {
  const double touched = args.x.raw() != args.y.raw()
                             ? 1.0
                             : static_cast<double>(args.rotated_heads) / static_cast<double>(args.row_heads);
  return traffic(bytes_of(args.x, args.y) * touched + bytes_of(args.starts));
}

double RopeFrequencies::of_pair(int64_t pair, int64_t head_dim) const {
  const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim);
  const double frequency = std::pow(static_cast<double>(base), exponent),
               slow = frequency / static_cast<double>(factor);
  if (scaling == RopeScaling::kNone) return frequency;
  if (scaling == RopeScaling::kLinear) return slow;
  const double low = static_cast<double>(low_frequency_factor), high = static_cast<double>(high_frequency_factor);
  // How often the pair turns within the original context.
  const double turns = static_cast<double>(original_context) * frequency / (2.0 * std::numbers::pi);
  if (turns > high) return frequency;
  if (turns < low) return slow;
  return std::lerp(slow, frequency, (turns - low) / (high - low));
}

std::string variant_of(const RopeArgs& a) { return fmt::format("{} heads of {}", a.rotated_heads, a.row_heads); }

}  // namespace mantissa
