// Entry checks of the kernels that watch what rounding does to tensors.
#include "core/backend/probe_checks.h"

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
  check_dtype(kOp, what, other, DType::kF32);
  check_shape(kOp, what, "weight's", other, args.weight.shape());
  check_record<UpdateStagnation>(kOp, "record", args.record);
}

}  // namespace mantissa
