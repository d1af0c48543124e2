#include "core/ops/linear.h"

namespace mantissa {

Var linear(Tape& tape, Var x, Parameter& weight, Parameter* bias) {
  MANTISSA_CHECK(x.value.shape().rank() == 2 && weight.shape.rank() == 2 && x.value.dim(1) == weight.shape[1],
                 "[linear] '{}' has shape {} (N, K); x must have shape (R, K), got {}", weight.name, weight.shape,
                 x.value.shape());
  MANTISSA_CHECK(bias == nullptr || bias->shape == Shape{weight.shape[0]},
                 "[linear] bias of '{}' must have shape ({}), got {}", weight.name, weight.shape[0],
                 bias ? bias->shape : Shape{});
  const DType x_dtype = x.value.dtype();
  const DType dtype = tape.compute_dtype(Op::kLinear, x_dtype, widest(x_dtype, weight.working_dtype));
  const Tensor input = tape.cast(x.value, dtype);
  const Tensor kernel = tape.weight(weight, dtype);
  Tensor y = tape.allocate(dtype, {input.dim(0), weight.shape[0]});
  tape.backend().gemm({.a = input,
                       .b = kernel,
                       .c = y,
                       .bias = bias ? tape.weight(*bias, dtype) : Tensor(),
                       .trans_b = Transpose::kYes},
                      tape.stream());

  std::vector<Parameter*> parameters{&weight};
  if (bias) parameters.push_back(bias);
  const int slot = x.slot;
  x.value = Tensor();  // the backward pass needs the cast input only
  return tape.record(
      Op::kLinear, y, {x}, parameters, [slot, x_dtype, input, kernel, &weight, bias](Tape& t, Tensor dy) {
        if (slot >= 0) {
          Tensor dx = t.allocate(x_dtype == DType::kF32 ? DType::kF32 : dy.dtype(), input.shape(), "gradient");
          t.backend().gemm({.a = dy, .b = kernel, .c = dx}, t.stream());
          t.give_gradient(Var{{}, slot}, std::move(dx));
        }
        const GradientTarget d_weight = t.gradient_target(weight);
        t.backend().gemm({.a = dy, .b = input, .c = d_weight.tensor, .trans_a = Transpose::kYes, .mode = d_weight.mode},
                         t.stream());
        if (bias) {
          const GradientTarget d_bias = t.gradient_target(*bias);
          t.backend().column_sum({.x = dy, .out = d_bias.tensor, .mode = d_bias.mode}, t.stream());
        }
      });
}

}  // namespace mantissa
