// Cross-entropy over a vocabulary: checks of operands, FLOP and bytes.
#include "core/kernels/loss/args.h"

#include "core/kernels/check_args.h"

namespace mantissa {
namespace {

Rows check_common(const char* op, const auto& args) {
  const Rows rows = rows_of(op, "logits", args.logits);
  check_tensor(op, "targets", args.targets, DType::kI32, rows.rows);
  MANTISSA_CHECK(args.softcap >= 0.0f, "[{}] softcap must be positive, or 0 for none, got {}", op, args.softcap);
  return rows;
}

}  // namespace

Rows check_args(const CrossEntropyForwardArgs& args) {
  constexpr const char* kOp = "cross_entropy";
  const Rows rows = check_common(kOp, args);
  const DType wide = wide_of(args.logits.dtype());
  check_tensor(kOp, "losses", args.losses, wide, rows.rows);
  check_tensor(kOp, "lse", args.lse, wide, rows.rows);
  check_tensor(kOp, "loss_sum", args.loss_sum, wide, 1);
  return rows;
}

Rows check_args(const CrossEntropyBackwardArgs& args) {
  constexpr const char* kOp = "cross_entropy backward";
  const Rows rows = check_common(kOp, args);
  const DType wide = wide_of(args.logits.dtype());
  check_tensor(kOp, "lse", args.lse, wide, rows.rows);
  check_tensor(kOp, "scale", args.scale, wide, 1);
  return rows;
}

KernelWork work_of(const CrossEntropyBackwardArgs& args) {
  return traffic(2.0 * bytes_of(args.logits) + bytes_of(args.targets, args.lse, args.scale));
}

}  // namespace mantissa
