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

namespace {

// c records for c equal parts of `of`; returns c.
int64_t check_part_records(const char* op, const Tensor& records, const char* what, const Tensor& of) {
  const int64_t parts = check_records<TensorStats>(op, "record", records);
  MANTISSA_CHECK(of.numel() % parts == 0, "[{}] record has {} records, which must divide the {} elements of {}", op,
                 parts, of.numel(), what);
  return parts;
}

// The number of members.
int64_t check_group(const SumContributionsArgs& args) {
  constexpr const char* kOp = "sum_contributions";
  const LaneGroup& group = args.group;
  const int64_t rows = args.contributions.dim(0);
  MANTISSA_CHECK(group.lanes >= 0 && group.lanes <= kMaxLanes && (group.lanes > 0 || rows <= kMaxLanes),
                 "[{}] lanes must be at most {}, got {}", kOp, kMaxLanes, group.lanes > 0 ? group.lanes : rows);
  if (group.lanes == 0) return rows;
  MANTISSA_CHECK(group.ranks >= 1 && group.ranks <= kMaxLanes && group.first >= 0 && group.span >= 1,
                 "[{}] group must have 1 to {} ranks, first >= 0 and span >= 1, got ranks={}, first={}, span={}", kOp,
                 kMaxLanes, group.ranks, group.first, group.span);
  const int64_t members = args.members();
  MANTISSA_CHECK(members > 0,
                 "[{}] contributions must have a row for each member and slot of the group: no number of members from "
                 "rank {} on, {} ranks each, of {} ranks with {} lanes has {} rows",
                 kOp, group.first, group.span, group.ranks, group.lanes, rows);
  return members;
}

}  // namespace

void check_args(const TensorStatsArgs& args) {
  check_float("tensor_stats", "x", args.x);
  check_part_records("tensor_stats", args.record, "x", args.x);
}

int64_t check_args(const SumContributionsArgs& args) {
  constexpr const char* kOp = "sum_contributions";
  check_defined(kOp, "contributions", args.contributions);
  const bool has_codes = is_coded(args.contributions.dtype());
  if (!has_codes) check_float(kOp, "contributions", args.contributions);
  check_float(kOp, "out", args.out);
  MANTISSA_CHECK(args.contributions.shape().rank() == 2 && args.contributions.dim(0) > 0,
                 "[sum_contributions] contributions must have shape (rows, n), rows >= 1, got {}",
                 args.contributions.shape());
  const int64_t members = check_group(args), nodes = args.group.nodes(members), n = args.columns();
  const int64_t row = args.contributions.dim(1);  // n, unless of codes
  MANTISSA_CHECK(args.out.numel() == nodes * n,
                 "[sum_contributions] contributions must have shape (rows, n) with out of (nodes, n)=({}, n), got {} "
                 "and out {}",
                 nodes, args.contributions.shape(), args.out.shape());
  MANTISSA_CHECK(args.stride() >= row || members == 1,
                 "[sum_contributions] row_stride must be 0 or at least n={}, got {}", row, args.stride());
  MANTISSA_CHECK(args.stride_of_slots() >= row, "[sum_contributions] slot_stride must be 0 or at least n={}, got {}",
                 row, args.slot_stride);
  MANTISSA_CHECK(
      args.rounded_to == DType::kF32 || (is_floating(args.rounded_to) && args.contributions.dtype() == DType::kF32),
      "[sum_contributions] contributions of fp32 can be rounded to bf16 or fp16, got {} to {}",
      args.contributions.dtype(), args.rounded_to);
  MANTISSA_CHECK(args.rounded_to != DType::kF32 || args.scale_before == 1.0f,
                 "[sum_contributions] scale_before={} without rounded_to, which it goes with", args.scale_before);
  MANTISSA_CHECK(!has_codes || (n % kCodeBlock == 0 && row == coded_row_bytes(n)),
                 "[sum_contributions] rows of codes must hold blocks of {}, their scales and padding, got {} bytes",
                 kCodeBlock, row);
  MANTISSA_CHECK(args.accumulate == DType::kF32 || (args.accumulate == args.added() && !has_codes),
                 "[sum_contributions] accumulate must be fp32 or the contributions' dtype {}, got {}", args.added(),
                 args.accumulate);
  if (args.record.defined()) {
    MANTISSA_CHECK(nodes == 1, "[sum_contributions] a record goes with a single sum, got {} nodes", nodes);
    const int64_t parts = check_part_records(kOp, args.record, "out", args.out);
    MANTISSA_CHECK(!has_codes || n / parts % kCodeBlock == 0,
                   "[sum_contributions] {} records of codes must be of whole blocks of {}, got n={}", parts, kCodeBlock,
                   n);
  }
  return members;
}

int64_t check_args(const RecordVerdictArgs& args) {
  check_defined("record_verdict", "losses", args.losses);
  check_dtype("record_verdict", "losses", args.losses, wide_of(args.losses.dtype()));
  check_record<UpdatePlan>("record_verdict", "plan", args.plan);
  check_record<VerdictRecord>("record_verdict", "record", args.record);
  if (args.state_faults.defined()) check_tensor("record_verdict", "state_faults", args.state_faults, DType::kI32, 1);
  MANTISSA_CHECK(args.rank >= 0, "[record_verdict] rank must be at least 0, got {}", args.rank);
  return check_records<TensorStats>("record_verdict", "stats", args.stats);
}

int64_t check_args(const FoldVerdictsArgs& args) {
  check_record<VerdictRecord>("fold_verdicts", "record", args.record);
  return check_records<VerdictRecord>("fold_verdicts", "records", args.records);
}

int64_t check_args(const DecideUpdateArgs& args) {
  const int64_t count = check_records<VerdictRecord>("decide_update", "records", args.records);
  check_record<UpdatePlan>("decide_update", "plan", args.plan);
  check_record<UpdateControl>("decide_update", "control", args.control);
  check_record<UpdateDecision>("decide_update", "decision", args.decision);
  check_tensor("decide_update", "hold", args.hold, DType::kI32, 1);
  if (args.applied.defined()) check_tensor("decide_update", "applied", args.applied, DType::kI32, 1);
  return count;
}

void check_args(const DigestArgs& args) {
  check_defined("digest", "x", args.x);
  check_record<Digest>("digest", "record", args.record);
  MANTISSA_CHECK(args.first >= 0 && args.first % kDigestTile == 0, "[digest] first must be a multiple of {}, got {}",
                 kDigestTile, args.first);
}

KernelWork work_of(const ColumnSumArgs& args) { return traffic(bytes_of(args.x) + result_bytes(args.out, args.mode)); }
KernelWork work_of(const TensorStatsArgs& args) { return traffic(bytes_of(args.x) + 2.0 * bytes_of(args.record)); }

KernelWork work_of(const SumContributionsArgs& args) {
  int64_t read = 0;
  LaneWalk walk = args.walk();
  for (LaneStep step; walk.next(step);) ++read;
  const double part = static_cast<double>(read) / static_cast<double>(args.contributions.dim(0));
  return traffic(part * bytes_of(args.contributions) + bytes_of(args.out) + 2.0 * bytes_of(args.record));
}

}  // namespace mantissa
