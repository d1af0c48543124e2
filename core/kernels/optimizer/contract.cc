// The AdamW update: checks of operands, FLOP and bytes.
#include "core/kernels/optimizer/args.h"

#include "core/base/round_up.h"
#include "core/kernels/check_args.h"
#include "core/quant/dynamic_map.h"

namespace mantissa {
namespace {

// Master and weight, or a weight that is its own state.
void check_weights(const char* op, const AdamWArgs& args) {
  if (args.master.defined()) {
    check_defined(op, "master", args.master);
    check_dtype(op, "master", args.master, wide_of(args.master.dtype()));
    MANTISSA_CHECK(!args.compensation.defined(), "[{}] with a master there is nothing to compensate", op);
    if (!args.weight.defined()) return;
    check_float(op, "weight", args.weight);
    if (args.master.dtype() == DType::kF64) check_dtype(op, "weight", args.weight, DType::kF64);
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
  check_tensor(op, "compensation", args.compensation, DType::kBF16, args.weight.numel());
}

void check_moment(const char* op, const char* what, const Tensor& moment, const Tensor& absmax, const AdamWArgs& args) {
  check_defined(op, what, moment);
  check_numel(op, what, moment, args.numel());
  const DType dtype = moment.dtype();
  if (args.is_fp64()) return check_dtype(op, what, moment, DType::kF64);
  MANTISSA_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kU8,
                 "[{}] {} must be fp32 or bf16 (fp16 would underflow) or u8, got {}", op, what, dtype);
  if (dtype != DType::kU8) {
    MANTISSA_CHECK(!absmax.defined(), "[{}] {} is {}: only codes have an absmax", op, what, dtype);
    return;
  }
  check_tensor(op, "absmax of codes", absmax, DType::kF32, divide_up(args.numel(), kDynamicBlock));
  MANTISSA_CHECK(args.first_element % kDynamicBlock == 0,
                 "[{}] first_element must be a multiple of {}, whose codes share an absmax, got {}", op, kDynamicBlock,
                 args.first_element);
}

}  // namespace

void check_args(const AdamWArgs& args) {
  constexpr const char* kOp = "adamw";
  check_weights(kOp, args);
  check_record<UpdateControl>(kOp, "control", args.control);
  if (args.faults.defined()) check_tensor(kOp, "faults", args.faults, DType::kI32, 1);
  MANTISSA_CHECK(args.first_element >= 0 && args.first_element % 4 == 0,
                 "[adamw] first_element must be a multiple of 4, which share their random words, got {}",
                 args.first_element);
  if (!args.gradient.defined() && !args.m.defined() && !args.v.defined()) {
    MANTISSA_CHECK(args.master.defined() && args.weight.defined(),
                   "[adamw] without gradient, m and v there must be a master and a weight to write");
    MANTISSA_CHECK(!args.digests.defined(), "[adamw] digests are of updates, and without a gradient there is none");
    return;
  }
  check_tensor(kOp, "gradient", args.gradient, args.is_fp64() ? DType::kF64 : DType::kF32, args.numel());
  if (args.digests.defined()) check_record<StateDigests>(kOp, "digests", args.digests);
  check_moment(kOp, "m", args.m, args.m_absmax, args);
  check_moment(kOp, "v", args.v, args.v_absmax, args);
}

int64_t check_args(const SettleDigestsArgs& args) {
  constexpr const char* kOp = "settle_digests";
  const int64_t records = check_records<StateDigests>(kOp, "records", args.records);
  check_record<UpdateControl>(kOp, "control", args.control);
  return records;
}

KernelWork work_of(const AdamWArgs& args) {
  const bool separate = args.master.defined() && args.weight.defined() && args.weight.raw() != args.master.raw();
  const double written = separate ? bytes_of(args.weight) : 0.0;
  if (!args.gradient.defined()) return traffic(bytes_of(args.master) + written);
  const Tensor& weights = args.master.defined() ? args.master : args.weight;
  const double state = bytes_of(weights, args.compensation, args.m, args.v, args.m_absmax, args.v_absmax);
  return traffic(2.0 * state + bytes_of(args.gradient) + written);
}

std::string variant_of(const AdamWArgs& a) { return a.rounding == WeightRounding::kStochastic ? "stochastic" : ""; }

}  // namespace mantissa
