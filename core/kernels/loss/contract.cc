// Cross-entropy over a vocabulary: checks of operands, FLOP and bytes.
#include "core/kernels/loss/args.h"

#include "core/kernels/check_args.h"

namespace mantissa {
namespace {

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

KernelWork work_of(const CrossEntropyBackwardArgs& args) {
  return traffic(2.0 * bytes_of(args.logits) + bytes_of(args.targets, args.lse, args.scale));
}

}  // namespace mantissa
