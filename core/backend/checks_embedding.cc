// Entry checks of embedding and of the loss over a vocabulary. Token ids themselves are the data loader's to check.
#include "core/backend/kernel_checks.h"

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

void check_ids(const char* op, const char* what, const Tensor& ids, const Rows& rows) {
  check_dtype(op, what, ids, DType::kI32);
  check_numel(op, what, ids, rows.rows);
}

void check_fp32(const char* op, const char* what, const Tensor& tensor, int64_t numel) {
  check_dtype(op, what, tensor, DType::kF32);
  check_numel(op, what, tensor, numel);
}

Rows check_targets(const char* op, const Tensor& logits, const Tensor& targets) {
  const Rows rows = rows_of(op, "logits", logits);
  check_ids(op, "targets", targets, rows);
  return rows;
}

}  // namespace

Rows check_args(const EmbeddingForwardArgs& args) {
  constexpr const char* kOp = "embedding";
  const Rows rows = rows_of(kOp, "y", args.y);
  check_table(kOp, "token_table", args.token_table, 1, rows.columns);
  check_ids(kOp, "tokens", args.tokens, rows);
  if (args.position_table.defined()) {
    check_position_table(kOp, "position_table", args.position_table, args.sequence_length, rows);
  }
  return rows;
}

Rows check_args(const EmbeddingBackwardArgs& args) {
  constexpr const char* kOp = "embedding backward";
  const Rows rows = rows_of(kOp, "dy", args.dy);
  check_table(kOp, "d_token_table", args.d_token_table, 1, rows.columns);
  check_dtype(kOp, "d_token_table", args.d_token_table, DType::kF32);
  check_ids(kOp, "tokens", args.tokens, rows);
  if (args.d_position_table.defined()) {
    check_position_table(kOp, "d_position_table", args.d_position_table, args.sequence_length, rows);
    check_dtype(kOp, "d_position_table", args.d_position_table, DType::kF32);
  }
  return rows;
}

Rows check_args(const CrossEntropyForwardArgs& args) {
  constexpr const char* kOp = "cross_entropy";
  const Rows rows = check_targets(kOp, args.logits, args.targets);
  check_fp32(kOp, "losses", args.losses, rows.rows);
  check_fp32(kOp, "lse", args.lse, rows.rows);
  check_fp32(kOp, "loss_sum", args.loss_sum, 1);
  return rows;
}

Rows check_args(const CrossEntropyBackwardArgs& args) {
  constexpr const char* kOp = "cross_entropy backward";
  const Rows rows = check_targets(kOp, args.logits, args.targets);
  check_fp32(kOp, "lse", args.lse, rows.rows);
  check_fp32(kOp, "scale", args.scale, 1);
  return rows;
}

}  // namespace mantissa
