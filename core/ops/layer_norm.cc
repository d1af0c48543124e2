#include "core/ops/layer_norm.h"

namespace mantissa {

Var layer_norm(Tape& tape, Var x, Parameter& weight, Parameter* bias, float epsilon, DType out) {
  const int64_t rows = x.value.dim(0), channels = x.value.dim(1);
  MANTISSA_CHECK(weight.shape == Shape{channels}, "[layer_norm] weight must have shape ({}), got {}", channels,
                 weight.shape);
  MANTISSA_CHECK(bias == nullptr || bias->shape == weight.shape, "[layer_norm] bias must have shape ({}), got {}",
                 channels, bias ? bias->shape : Shape{});
  Tensor y = tape.allocate(out, {rows, channels});
  const Tensor mean = tape.allocate(DType::kF32, {rows}), rstd = tape.allocate(DType::kF32, {rows});
  tape.backend().layer_norm_forward({.x = x.value,
                                     .weight = weight.weight,
                                     .bias = bias ? bias->weight : Tensor(),
                                     .y = y,
                                     .mean = mean,
                                     .rstd = rstd,
                                     .epsilon = epsilon},
                                    tape.stream());
  std::vector<Parameter*> parameters{&weight};
  if (bias) parameters.push_back(bias);
  return tape.record(Op::kLayerNorm, y, {x}, parameters, [x, mean, rstd, &weight, bias](Tape& t, Tensor dy) {
    const GradientTarget dx =
        x.slot >= 0 ? t.gradient_target(x) : GradientTarget{t.allocate(x.value.dtype(), x.value.shape(), "gradient")};
    const GradientTarget d_weight = t.gradient_target(weight);
    LayerNormBackwardArgs args{.x = x.value,
                               .dy = dy,
                               .weight = weight.weight,
                               .mean = mean,
                               .rstd = rstd,
                               .dx = dx.tensor,
                               .d_weight = d_weight.tensor,
                               .mode = dx.mode,
                               .weight_mode = d_weight.mode};
    if (bias) {
      const GradientTarget d_bias = t.gradient_target(*bias);
      args.d_bias = d_bias.tensor;
      args.bias_mode = d_bias.mode;
    }
    t.backend().layer_norm_backward(args, t.stream());
  });
}

}  // namespace mantissa
