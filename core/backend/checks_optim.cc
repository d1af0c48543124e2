// Entry checks of the update and of what it needs of gradients.
#include "core/backend/kernel_checks.h"

namespace mantissa {

void check_args(const TensorStatsArgs& args) {
  check_float("tensor_stats", "x", args.x);
  check_record<TensorStats>("tensor_stats", "record", args.record);
}

void check_args(const AdamWArgs& args) {
  constexpr const char* kOp = "adamw";
  check_dtype(kOp, "master", args.master, DType::kF32);
  check_record<UpdateControl>(kOp, "control", args.control);
  if (args.weight.defined()) {
    check_float(kOp, "weight", args.weight);
    check_numel(kOp, "weight", args.weight, args.master.numel());
  }
  MANTISSA_CHECK(args.first_element >= 0 && args.first_element % 4 == 0,
                 "[adamw] first_element must be a multiple of 4, which share their random words, got {}",
                 args.first_element);
  if (!args.gradient.defined() && !args.m.defined() && !args.v.defined()) {
    MANTISSA_CHECK(args.weight.defined(), "[adamw] without gradient, m and v there must be a weight to write");
    return;
  }
  check_dtype(kOp, "gradient", args.gradient, DType::kF32);
  check_dtype(kOp, "v", args.v, DType::kF32);
  check_float(kOp, "m", args.m);
  MANTISSA_CHECK(args.m.dtype() != DType::kF16, "[adamw] m must be fp32 or bf16 (fp16 would underflow), got {}",
                 args.m.dtype());
  check_numel(kOp, "gradient", args.gradient, args.master.numel());
  check_numel(kOp, "m", args.m, args.master.numel());
  check_numel(kOp, "v", args.v, args.master.numel());
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

}  // namespace mantissa
