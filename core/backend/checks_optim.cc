// Entry checks of the update and of what it needs of gradients.
#include "core/backend/kernel_checks.h"
#include "core/quant/dynamic_map.h"

namespace mantissa {

void check_args(const TensorStatsArgs& args) {
  check_float("tensor_stats", "x", args.x);
  check_record<TensorStats>("tensor_stats", "record", args.record);
}

namespace {

// Master and weight, or a weight that is its own state.
void check_weights(const char* op, const AdamWArgs& args) {
  if (args.master.defined()) {
    check_dtype(op, "master", args.master, DType::kF32);
    MANTISSA_CHECK(!args.compensation.defined(), "[{}] with a master there is nothing to compensate", op);
    if (!args.weight.defined()) return;
    check_float(op, "weight", args.weight);
    check_numel(op, "weight", args.weight, args.master.numel());
    return;
  }
  MANTISSA_CHECK(args.weight.defined(), "[{}] master or weight must be given, got two undefined tensors", op);
  check_dtype(op, "weight without a master", args.weight, DType::kBF16);
  const bool compensated = args.compensation.defined();
  MANTISSA_CHECK(compensated == (args.rounding == WeightRounding::kNearest),
                 "[{}] a weight without a master must have a compensation, or else be rounded stochastically: rounding "
                 "to nearest loses updates below half a step",
                 op);
  if (!compensated) return;
  check_dtype(op, "compensation", args.compensation, DType::kBF16);
  check_numel(op, "compensation", args.compensation, args.weight.numel());
}

void check_moment(const char* op, const char* what, const Tensor& moment, const Tensor& absmax, const AdamWArgs& args) {
  check_defined(op, what, moment);
  check_numel(op, what, moment, args.numel());
  const DType dtype = moment.dtype();
  MANTISSA_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kU8,
                 "[{}] {} must be fp32 or bf16 (fp16 would underflow) or u8, got {}", op, what, dtype);
  if (dtype != DType::kU8) {
    MANTISSA_CHECK(!absmax.defined(), "[{}] {} is {}: only codes have an absmax", op, what, dtype);
    return;
  }
  check_dtype(op, "absmax of codes", absmax, DType::kF32);
  check_numel(op, "absmax of codes", absmax, (args.numel() + kDynamicBlock - 1) / kDynamicBlock);
  MANTISSA_CHECK(args.first_element % kDynamicBlock == 0,
                 "[{}] first_element must be a multiple of {}, whose codes share an absmax, got {}", op, kDynamicBlock,
                 args.first_element);
}

}  // namespace

void check_args(const AdamWArgs& args) {
  constexpr const char* kOp = "adamw";
  check_weights(kOp, args);
  check_record<UpdateControl>(kOp, "control", args.control);
  MANTISSA_CHECK(args.first_element >= 0 && args.first_element % 4 == 0,
                 "[adamw] first_element must be a multiple of 4, which share their random words, got {}",
                 args.first_element);
  if (!args.gradient.defined() && !args.m.defined() && !args.v.defined()) {
    MANTISSA_CHECK(args.master.defined() && args.weight.defined(),
                   "[adamw] without gradient, m and v there must be a master and a weight to write");
    return;
  }
  check_dtype(kOp, "gradient", args.gradient, DType::kF32);
  check_numel(kOp, "gradient", args.gradient, args.numel());
  check_moment(kOp, "m", args.m, args.m_absmax, args);
  check_moment(kOp, "v", args.v, args.v_absmax, args);
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
