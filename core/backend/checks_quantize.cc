// Entry checks of the kernels that round to low-precision formats.
#include "core/backend/quantize_checks.h"

namespace mantissa {

void check_args(const AmaxArgs& args) {
  check_float("amax", "x", args.x);
  check_record<QuantizeRecord>("amax", "record", args.record);
}

Rows check_args(const QuantizeArgs& args) {
  const Rows extents = rows_of("quantize", "src", args.src);
  check_dtype("quantize", "dst", args.dst, DType::kBF16);
  check_shape("quantize", "dst", "(R, C)", args.dst, args.src.shape());
  MANTISSA_CHECK(refusal(args.format).empty(), "[quantize] {}", refusal(args.format));
  const bool needs_scale = has_tensor_scale(args.format.scaling);
  MANTISSA_CHECK(args.scale.defined() == needs_scale, "[quantize] {} scaling {} a tensor's scale, got {}",
                 name(args.format.scaling), needs_scale ? "needs" : "has not", needs_scale ? "none" : "one");
  if (needs_scale) {
    check_dtype("quantize", "scale", args.scale, DType::kF32);
    check_numel("quantize", "scale", args.scale, 1);
  }
  if (args.record.defined()) check_record<QuantizeRecord>("quantize", "record", args.record);
  return extents;
}

}  // namespace mantissa
