// Sums over rows and ranks, gradient statistics, digests and the verdict about a step: checks of operands, FLOP and
// bytes.
#include "core/kernels/reduction/args.h"

#include "core/kernels/check_args.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa {

Rows check_args(const ColumnSumArgs& args) {
  const Rows rows = rows_of("column_sum", "x", args.x);
  check_tensor("column_sum", "out", args.out, wide_of(args.x.dtype()), "(C)", {rows.columns});
  return rows;
}

void check_args(const TensorStatsArgs& args) {
  check_float("tensor_stats", "x", args.x);
  check_record<TensorStats>("tensor_stats", "record", args.record);
}

Rows check_args(const SumContributionsArgs& args) {
  constexpr const char* kOp = "sum_contributions";
  check_float(kOp, "contributions", args.contributions);
  check_float(kOp, "out", args.out);
  MANTISSA_CHECK(args.contributions.shape().rank() == 2 && args.contributions.dim(0) > 0 &&
                     args.contributions.dim(1) == args.out.numel(),
                 "[sum_contributions] contributions must have shape (ranks, n)=(>= 1, {}), got {}", args.out.numel(),
                 args.contributions.shape());
  const int64_t stride = args.stride();
  MANTISSA_CHECK(stride >= args.out.numel() || args.ranks() == 1,
                 "[sum_contributions] row_stride must be 0 or at least n={}, got {}", args.out.numel(), stride);
  MANTISSA_CHECK(
      args.rounded_to == DType::kF32 || (is_floating(args.rounded_to) && args.contributions.dtype() == DType::kF32),
      "[sum_contributions] contributions of fp32 can be rounded to bf16 or fp16, got {} to {}",
      args.contributions.dtype(), args.rounded_to);
  MANTISSA_CHECK(args.rounded_to != DType::kF32 || args.scale_before == 1.0f,
                 "[sum_contributions] scale_before={} without rounded_to, which it goes with", args.scale_before);
  MANTISSA_CHECK(args.accumulate == DType::kF32 || args.accumulate == args.added(),
                 "[sum_contributions] accumulate must be fp32 or the contributions' dtype {}, got {}", args.added(),
                 args.accumulate);
  if (args.record.defined()) check_record<TensorStats>(kOp, "record", args.record);
  return {args.ranks(), args.contributions.dim(1)};
}

int64_t check_args(const RecordVerdictArgs& args) {
  check_defined("record_verdict", "losses", args.losses);
  check_dtype("record_verdict", "losses", args.losses, wide_of(args.losses.dtype()));
  check_record<UpdatePlan>("record_verdict", "plan", args.plan);
  check_record<VerdictRecord>("record_verdict", "record", args.record);
  if (args.state_faults.defined()) check_tensor("record_verdict", "state_faults", args.state_faults, DType::kI32, 1);
  return check_records<TensorStats>("record_verdict", "stats", args.stats);
}

int64_t check_args(const DecideUpdateArgs& args) {
  const int64_t ranks = check_records<VerdictRecord>("decide_update", "records", args.records);
  check_record<UpdatePlan>("decide_update", "plan", args.plan);
  check_record<UpdateControl>("decide_update", "control", args.control);
  check_record<UpdateDecision>("decide_update", "decision", args.decision);
  check_tensor("decide_update", "hold", args.hold, DType::kI32, 1);
  return ranks;
}

void check_args(const DigestArgs& args) {
  check_defined("digest", "x", args.x);
  check_record<Digest>("digest", "record", args.record);
}

KernelWork work_of(const ColumnSumArgs& args) { return traffic(bytes_of(args.x) + result_bytes(args.out, args.mode)); }
KernelWork work_of(const TensorStatsArgs& args) { return traffic(bytes_of(args.x) + 2.0 * bytes_of(args.record)); }

KernelWork work_of(const SumContributionsArgs& args) {
  return traffic(bytes_of(args.contributions, args.out) + 2.0 * bytes_of(args.record));
}

}  // namespace mantissa
