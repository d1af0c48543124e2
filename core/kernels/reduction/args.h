// Sums over rows and ranks, gradient statistics, digests, and the verdict about a step.
#pragma once

#include "core/kernels/digest/digest.h"
#include "core/kernels/kernel_args.h"
#include "core/kernels/reduction/lane_tree.h"
#include "core/kernels/reduction/records.h"
#include "core/quant/coded_rows.h"

namespace mantissa {

// out (C) wide_of(x) = sum over rows of x (R, C) float: the gradient of a bias.
struct ColumnSumArgs {
  static constexpr std::string_view kName = "column_sum";
  Tensor x{}, out{};
  GradientMode mode = GradientMode::kWrite;

  static auto operands(auto& a) { return std::array{&a.x, &a.out}; }
};

// Adds x (float, any shape) to the TensorStats that `record` holds; element i of x has index index_offset + i. With c
// records, record u is of the u-th of c equal parts of x, with the bits of a call for that part alone.
struct TensorStatsArgs {
  static constexpr std::string_view kName = "tensor_stats";
  Tensor x{};
  Tensor record{};  // u8 of c TensorStats, c >= 1: Backend::make_stats()
  int64_t index_offset = 0;

  static auto operands(auto& a) { return std::array{&a.x, &a.record}; }
};

// out = scale * the sum of contributions over lanes, in the order of the tree of lane_tree.h. Contributions (S * N, n)
// float are the nodes of N members; row s * N + j is node s of member j. Rows of a slot s are row_stride elements apart
// (0: n), slots slot_stride (0: N row strides). Rows of nodes that a member does not have are not read. Contributions
// of e4m3 or e5m2 (S * N, coded_row_bytes(n)) are rows of codes (coded_rows.h), n a multiple of the block; strides then
// count bytes, and parts of the record are whole blocks.
//   group        The lanes of the members; N and S follow from it. By default each row is a lane. out: (n) if they
//                have all lanes, else (O, n) with the O nodes of their union, in order.
//   rounded_to   If a 16-bit dtype: the rows are fp32, and the addends are the results of cast() with scale_before.
//   accumulate   fp32: the sum is kept in fp32 and rounded once to out's dtype. The dtype of the addends: rounded to it
//                after every addition, as a native 16-bit reduction does. fp64 contributions are summed in fp64.
//   record       If defined, for out (n): adds the TensorStats of out, as stored, with the bits of TensorStatsArgs. A
//                CPU examines each block right after its sum, while the caches hold it.
struct SumContributionsArgs {
  static constexpr std::string_view kName = "sum_contributions";
  Tensor contributions{}, out{};
  int64_t row_stride = 0, slot_stride = 0;
  LaneGroup group{};
  DType rounded_to = DType::kF32;  // fp32: no rounding
  float scale_before = 1.0f;
  DType accumulate = DType::kF32;
  float scale = 1.0f;
  Tensor record{};           // as in TensorStatsArgs
  int64_t index_offset = 0;  // as in TensorStatsArgs

  int64_t members() const { return group.members_of(contributions.dim(0)); }
  int64_t columns() const { return row_numel(contributions.dtype(), contributions.dim(1)); }
  LaneWalk walk() const { return LaneWalk::over(group, members()); }
  int64_t stride() const { return row_stride == 0 ? contributions.dim(1) : row_stride; }
  int64_t stride_of_slots() const { return slot_stride == 0 ? members() * stride() : slot_stride; }
  // The dtype of the addends.
  DType added() const { return rounded_to == DType::kF32 ? contributions.dtype() : rounded_to; }

  static auto operands(auto& a) { return std::array{&a.contributions, &a.out, &a.record}; }
};

// Writes record, u8 of one VerdictRecord, the findings of `rank`:
//   the exact sum of losses (M) fp32 or fp64 of its micro-batches
//   the exact sum of stats (N * sizeof(TensorStats)) u8 for its parts of the gradients, N >= 1
//   the stop request of plan, u8 of one UpdatePlan
//   state_faults (1) i32, AdamWArgs::faults of its updates, or undefined
struct RecordVerdictArgs {
  static constexpr std::string_view kName = "record_verdict";
  Tensor losses{}, stats{}, plan{}, record{}, state_faults{};
  int32_t rank = 0;

  static auto operands(auto& a) { return std::array{&a.losses, &a.stats, &a.plan, &a.record, &a.state_faults}; }
};

// record, u8 of one VerdictRecord = the sum of records (N * sizeof(VerdictRecord)) u8, N >= 1. The sum has the same
// bits in any order. For the stages of an exchange.
struct FoldVerdictsArgs {
  static constexpr std::string_view kName = "fold_verdicts";
  Tensor records{}, record{};

  static auto operands(auto& a) { return std::array{&a.records, &a.record}; }
};

// Decides by the sum of records (N * sizeof(VerdictRecord)) u8, N >= 1, of all ranks in any order; plan, control,
// decision: u8, a record each; hold (1) i32: not 0 after a step that was not applied, until the host clears it. applied
// (1) i32, or undefined: counts the updates that are applied.
struct DecideUpdateArgs {
  static constexpr std::string_view kName = "decide_update";
  Tensor records{}, plan{}, hold{}, control{}, decision{}, applied{};

  static auto operands(auto& a) {
    return std::array{&a.records, &a.plan, &a.hold, &a.control, &a.decision, &a.applied};
  }
};

// Adds the digest of x (any dtype and shape) to the Digest in `record`, as if `first` items, a multiple of kDigestTile,
// came before it.
struct DigestArgs {
  static constexpr std::string_view kName = "digest";
  Tensor x{};
  Tensor record{};  // u8 of one Digest
  int64_t first = 0;

  static auto operands(auto& a) { return std::array{&a.x, &a.record}; }
};

MANTISSA_DECLARE_KERNEL(ColumnSumArgs, Rows)  // x
MANTISSA_DECLARE_KERNEL(TensorStatsArgs, void)
MANTISSA_DECLARE_KERNEL(SumContributionsArgs, int64_t)  // members
MANTISSA_DECLARE_KERNEL(RecordVerdictArgs, int64_t)     // statistics
MANTISSA_DECLARE_KERNEL(FoldVerdictsArgs, int64_t)      // records
MANTISSA_DECLARE_KERNEL(DecideUpdateArgs, int64_t)      // records
MANTISSA_DECLARE_KERNEL(DigestArgs, void)

KernelWork work_of(const ColumnSumArgs& args);
KernelWork work_of(const TensorStatsArgs& args);
KernelWork work_of(const SumContributionsArgs& args);
inline KernelWork work_of(const DigestArgs& args) { return traffic(bytes_of(args.x) + 2.0 * bytes_of(args.record)); }

}  // namespace mantissa
