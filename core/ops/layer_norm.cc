#include "core/ops/layer_norm.h"

#include "core/kernels/norm/args.h"

namespace mantissa {
namespace {

// Records the norm y of x.
Var record_norm(Tape& tape, const Var& x, const LayerNormForwardArgs& args, Parameter& weight, Parameter* bias) {
  std::vector<Parameter*> parameters{&weight};
  if (bias) parameters.push_back(bias);
  return tape.record(Op::kLayerNorm, args.y, {x}, parameters,
                     [x, mean = args.mean, rstd = args.rstd, &weight, bias](Tape& t, Tensor dy) {
                       const GradientTarget dx =
                           x.slot >= 0 ? t.gradient_target(x)
                                       : GradientTarget{t.allocate(x.value.dtype(), x.value.shape(), "gradient")};
                       const GradientTarget d_weight = t.gradient_target(weight);
                       LayerNormBackwardArgs backward{.x = x.value,
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
                         backward.d_bias = d_bias.tensor;
                         backward.bias_mode = d_bias.mode;
                       }
                       t.backend().run(backward, t.stream());
                     });
}

}  // namespace

Var layer_norm(Tape& tape, Var x, Parameter& weight, Parameter* bias, float epsilon, DType out) {
  return add_layer_norm(tape, {.a = std::move(x)}, weight, bias, epsilon, out).normed;
}

NormedSum add_layer_norm(Tape& tape, DeferredSum x, Parameter& weight, Parameter* bias, float epsilon, DType out) {
  const int64_t rows = x.a.value.dim(0), channels = x.a.value.dim(1);
  MANTISSA_CHECK(weight.shape == Shape{channels}, "[layer_norm] weight must have shape ({}), got {}", channels,
                 weight.shape);
  MANTISSA_CHECK(bias == nullptr || bias->shape == weight.shape, "[layer_norm] bias must have shape ({}), got {}",
                 channels, bias ? bias->shape : Shape{});
  const LayerNormForwardArgs args{.x = x.a.value,
                                  .residual = x.b.value,
                                  .sum = x.is_deferred() ? tape.allocate(x.dtype, x.a.value.shape()) : Tensor(),
                                  .weight = weight.weight,
                                  .bias = bias ? bias->weight : Tensor(),
                                  .y = tape.allocate(out, {rows, channels}),
                                  .mean = tape.allocate(DType::kF32, {rows}),
                                  .rstd = tape.allocate(DType::kF32, {rows}),
                                  .epsilon = epsilon};
  tape.backend().run(args, tape.stream());
  const Var sum = x.is_deferred() ? record_sum(tape, x, args.sum) : x.a;
  LayerNormForwardArgs again = args;  // normalizes the stored sum; mean and rstd come out the same
  again.x = sum.value;
  again.residual = again.sum = again.y = Tensor();
  const auto remake = [again, out](Tape& t) {
    LayerNormForwardArgs norm = again;
    norm.y = t.allocate(out, again.x.shape());
    t.backend().run(norm, t.stream());
    return norm.y;
  };
  return {sum, tape.remakeable(record_norm(tape, sum, args, weight, bias), remake)};
}

}  // namespace mantissa
