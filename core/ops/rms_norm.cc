#include "core/ops/rms_norm.h"

namespace mantissa {

Var rms_norm(Tape& tape, Var x, Parameter& weight, float epsilon, DType out) {
  const int64_t rows = x.value.dim(0), channels = x.value.dim(1);
  MANTISSA_CHECK(weight.shape == Shape{channels}, "[rms_norm] weight must have shape ({}), got {}", channels,
                 weight.shape);
  Tensor y = tape.allocate(out, {rows, channels});
  const Tensor rstd = tape.allocate(DType::kF32, {rows});
  tape.backend().rms_norm_forward({.x = x.value, .weight = weight.weight, .y = y, .rstd = rstd, .epsilon = epsilon},
                                  tape.stream());
  return tape.record(Op::kRmsNorm, y, {x}, {&weight}, [x, rstd, &weight](Tape& t, Tensor dy) {
    const GradientTarget dx =
        x.slot >= 0 ? t.gradient_target(x) : GradientTarget{t.allocate(x.value.dtype(), x.value.shape(), "gradient")};
    const GradientTarget d_weight = t.gradient_target(weight);
    t.backend().rms_norm_backward({.x = x.value,
                                   .dy = dy,
                                   .weight = weight.weight,
                                   .rstd = rstd,
                                   .dx = dx.tensor,
                                   .d_weight = d_weight.tensor,
                                   .mode = dx.mode,
                                   .weight_mode = d_weight.mode},
                                  t.stream());
  });
}

}  // namespace mantissa
