// Probes: checks of operands, FLOP and bytes.
#include "core/kernels/probe/args.h"

#include "core/kernels/check_args.h"

namespace mantissa {

void check_args(const ExponentHistogramArgs& args) {
  check_float("exponent_histogram", "x", args.x);
  check_record<ExponentHistogram>("exponent_histogram", "record", args.record);
}

void check_args(const UpdateStagnationArgs& args) {
  constexpr const char* kOp = "update_stagnation";
  check_dtype(kOp, "weight", args.weight, DType::kF32);
  MANTISSA_CHECK(args.delta.defined() != args.updated.defined(),
                 "[update_stagnation] one of delta and updated must be given, got {}",
                 args.delta.defined() ? "both" : "neither");
  const Tensor& other = args.delta.defined() ? args.delta : args.updated;
  const char* const what = args.delta.defined() ? "delta" : "updated";
  check_tensor(kOp, what, other, DType::kF32, "weight's", args.weight.shape());
  check_record<UpdateStagnation>(kOp, "record", args.record);
}

Rows check_args(const RoundingLossesArgs& args) {
  constexpr const char* kOp = "rounding_losses";
  const Rows extents = rows_of(kOp, "src", args.src);
  MANTISSA_CHECK(refusal(args.format).empty(), "[rounding_losses] {}", refusal(args.format));
  const bool needs_scale = has_tensor_scale(args.format.scaling);
  MANTISSA_CHECK(args.scale.defined() == needs_scale, "[rounding_losses] {} scaling {} a tensor's scale, got {}",
                 name(args.format.scaling), needs_scale ? "needs" : "has not", needs_scale ? "none" : "one");
  if (needs_scale) check_tensor(kOp, "scale", args.scale, DType::kF32, 1);
  check_record<FormatLosses>(kOp, "record", args.record);
  return extents;
}

void check_args(const CompareArgs& args) {
  check_float("compare", "x", args.x);
  const bool is_fp64 = args.reference.defined() && args.reference.dtype() == DType::kF64;
  check_tensor("compare", "reference", args.reference, is_fp64 ? DType::kF64 : DType::kF32, args.x.numel());
  check_record<ErrorSums>("compare", "record", args.record);
}

KernelWork work_of(const ExponentHistogramArgs& args) {
  return traffic(bytes_of(args.x) + result_bytes(args.record, args.mode));
}

KernelWork work_of(const UpdateStagnationArgs& args) {
  return traffic(bytes_of(args.weight, args.delta, args.updated) + result_bytes(args.record, args.mode));
}

KernelWork work_of(const RoundingLossesArgs& args) {
  const double passes = block_length(args.format.scaling) > 0 ? 2.0 : 1.0;
  return traffic(passes * bytes_of(args.src) + bytes_of(args.scale) + result_bytes(args.record, args.mode));
}

KernelWork work_of(const CompareArgs& args) {
  return traffic(bytes_of(args.x, args.reference) + result_bytes(args.record, args.mode));
}

}  // namespace mantissa
