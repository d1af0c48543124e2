// Checks of operands, FLOP and bytes.
#include "core/kernels/elementwise/args.h"

#include "core/kernels/check_args.h"

namespace mantissa {

void check_args(const CastArgs& args) {
  check_float("cast", "src", args.src);
  check_float("cast", "dst", args.dst);
  check_numel("cast", "dst", args.dst, args.src.numel());
}

void check_args(const SplitArgs& args) {
  constexpr const char* kNames[] = {"parts[0]", "parts[1]", "parts[2]"};
  check_dtype("split", "x", args.x, DType::kF32);
  for (int part = 0; part < args.count(); ++part) {
    check_tensor("split", kNames[part], args.parts[part], DType::kBF16, args.x.numel());
  }
}

void check_args(const AddArgs& args) {
  check_float("add", "a", args.a);
  check_float("add", "b", args.b);
  check_float("add", "y", args.y);
  check_numel("add", "b", args.b, args.a.numel());
  check_numel("add", "y", args.y, args.a.numel());
}

void check_args(const DropoutArgs& args) {
  check_float("dropout", "x", args.x);
  check_float("dropout", "y", args.y);
  check_numel("dropout", "y", args.y, args.x.numel());
  check_tensor("dropout", "step", args.step, DType::kI32, 1);
  MANTISSA_CHECK(args.probability >= 0.0f && args.probability < 1.0f, "[dropout] probability must be in [0, 1), got {}",
                 args.probability);
  MANTISSA_CHECK(args.elements_per_sample > 0 && args.x.numel() % args.elements_per_sample == 0,
                 "[dropout] x of {} elements must be whole samples of {}", args.x.numel(), args.elements_per_sample);
  MANTISSA_CHECK(args.elements_per_sample <= int64_t{4} << 32, "[dropout] a sample has at most 2^34 elements, got {}",
                 args.elements_per_sample);
}

void check_args(const FillArgs& args) {
  check_defined("fill", "dst", args.dst);
  MANTISSA_CHECK(is_floating(args.dst.dtype()) || args.value == 0.0f,
                 "[fill] a tensor of {} can only be filled with 0, got {}", args.dst.dtype(), args.value);
}

}  // namespace mantissa
