#include "core/ops/linear.h"

#include "core/autograd/saved_value.h"
#include "core/ops/fp32_product.h"
#include "core/ops/activation.h"
#include "core/ops/rounded_linear.h"
#include "core/ops/show_product.h"

namespace mantissa {
namespace {

// Operands of a linear layer's forward product, in its dtype.
struct Operands {
  Tensor input, kernel, bias;
  OperandCache* kernel_cache;
  Fp32Products products;

  GemmArgs product(const Tensor& y) const {
    return {.a = input, .b = kernel, .c = y, .bias = bias, .trans_b = Transpose::kYes, .b_cache = kernel_cache};
  }
  Shape output_shape() const { return {input.dim(0), kernel.dim(0)}; }
};

void check_shapes(const Tensor& x, const Parameter& weight, const Parameter* bias) {
  MANTISSA_CHECK(x.shape().rank() == 2 && weight.shape.rank() == 2 && x.dim(1) == weight.shape[1],
                 "[linear] '{}' has shape {} (N, K); x must have shape (R, K), got {}", weight.name, weight.shape,
                 x.shape());
  MANTISSA_CHECK(bias == nullptr || bias->shape == Shape{weight.shape[0]},
                 "[linear] bias of '{}' must have shape ({}), got {}", weight.name, weight.shape[0],
                 bias ? bias->shape : Shape{});
}

// For products with GELU fused in.
void require_unrounded(const Tape& tape, const Parameter& weight) {
  MANTISSA_CHECK(!tape.linear_formats().any(), "[linear] '{}' rounds its operands: gelu must be an op of its own",
                 weight.name);
}

Operands operands_of(Tape& tape, const Tensor& x, const Parameter& weight, const Parameter* bias) {
  check_shapes(x, weight, bias);
  const DType dtype = linear_dtype(tape, x.dtype(), weight);
  return {.input = tape.cast(x, dtype),
          .kernel = tape.weight(weight, dtype),
          .bias = bias ? tape.weight(*bias, dtype) : Tensor(),
          .kernel_cache = tape.operand_cache(weight, dtype),
          .products = tape.fp32_products()};
}

// Makes the gradient of a linear layer's input.
using InputGradient = std::function<Tensor(Tape& tape, const Tensor& dy)>;

// Records `output` as the linear layer's result. `input_gradient` makes the gradient of `slot` from that of `output`.
Var record_linear(Tape& tape, Tensor output, const SavedValue& input, Parameter& weight, Parameter* bias, int slot,
                  InputGradient input_gradient) {
  std::vector<Parameter*> parameters{&weight};
  if (bias) parameters.push_back(bias);
  return tape.record(Op::kLinear, std::move(output), {Var{{}, slot}}, parameters,
                     [slot, input, &weight, bias, input_gradient, products = tape.fp32_products()](Tape& t, Tensor dy) {
                       if (slot >= 0) t.give_gradient(Var{{}, slot}, input_gradient(t, dy));
                       const GradientTarget d_weight = t.gradient_target(weight);
                       const GradientTarget d_bias = bias ? t.gradient_target(*bias) : GradientTarget{};
                       const Tensor x = input.get(t);
                       multiply(t,
                                {.a = dy,
                                 .b = x,
                                 .c = d_weight.tensor,
                                 .bias_gradient = d_bias.tensor,
                                 .trans_a = Transpose::kYes,
                                 .mode = d_weight.mode,
                                 .bias_gradient_mode = d_bias.mode},
                                products);
                       show_unrounded(t, weight, Product::kWeightGradient, dy, x, d_weight.tensor, products);
                     });
}

// dx = dy W. dx is fp32 for an fp32 x (a residual stream), even if the product reads 16-bit operands.
InputGradient plain_gradient(const Operands& operands, const Parameter& weight, DType x_dtype) {
  return [kernel = operands.kernel, cache = operands.kernel_cache, products = operands.products,
          shape = operands.input.shape(), &weight, x_dtype](Tape& t, const Tensor& dy) {
    Tensor dx = t.allocate(x_dtype == DType::kF32 ? DType::kF32 : dy.dtype(), shape, "gradient");
    multiply(t, {.a = dy, .b = kernel, .c = dx, .b_cache = cache}, products);
    show_unrounded(t, weight, Product::kInputGradient, dy, kernel, dx, products);
    return dx;
  };
}

}  // namespace

DType linear_dtype(const Tape& tape, DType x, const Parameter& weight) {
  return tape.compute_dtype(Op::kLinear, x, widest(x, weight.working_dtype));
}

Var linear(Tape& tape, Var x, Parameter& weight, Parameter* bias) {
  if (const LinearFormats formats = tape.linear_formats(); formats.any()) {
    check_shapes(x.value, weight, bias);
    const DType dtype = linear_dtype(tape, x.value.dtype(), weight);
    return rounded_linear(tape, std::move(x), weight, bias, dtype, formats);
  }
  const Operands operands = operands_of(tape, x.value, weight, bias);
  const SavedValue input(x, operands.input);
  const DType x_dtype = x.value.dtype();
  x.value = Tensor();  // the backward pass needs only the cast input
  const Tensor y = tape.allocate(operands.input.dtype(), operands.output_shape());
  multiply(tape, operands.product(y), operands.products);
  show_unrounded(tape, weight, Product::kForward, operands.input, operands.kernel, y, operands.products);
  return record_linear(tape, y, input, weight, bias, x.slot, plain_gradient(operands, weight, x_dtype));
}

GeluOutput linear_gelu(Tape& tape, Var x, Parameter& weight, Parameter* bias, GeluForm form) {
  require_unrounded(tape, weight);
  const Operands operands = operands_of(tape, x.value, weight, bias);
  const SavedValue saved(x, operands.input);
  const DType x_dtype = x.value.dtype();
  x.value = Tensor();
  const Tensor input = tape.allocate(operands.input.dtype(), operands.output_shape());
  const Tensor y = tape.allocate(input.dtype(), input.shape());
  GemmArgs product = operands.product(y);
  product.aux = input;
  product.activation = GemmActivation::kGelu;
  product.form = form;
  multiply(tape, product, operands.products);
  show_unrounded(tape, weight, Product::kForward, operands.input, operands.kernel, y, operands.products);
  Var made = record_linear(tape, y, saved, weight, bias, x.slot, plain_gradient(operands, weight, x_dtype));
  return {tape.remakeable(std::move(made), [input, form](Tape& t) { return gelu_of(t, input, form); }), input, form};
}

Var linear(Tape& tape, GeluOutput x, Parameter& weight, Parameter* bias) {
  require_unrounded(tape, weight);
  const Operands operands = operands_of(tape, x.y.value, weight, bias);
  MANTISSA_CHECK(operands.input.dtype() == x.input.dtype(), "[linear] '{}' must compute in gelu's dtype {}, got {}",
                 weight.name, x.input.dtype(), operands.input.dtype());
  const Tensor y = tape.allocate(operands.input.dtype(), operands.output_shape());
  multiply(tape, operands.product(y), operands.products);
  show_unrounded(tape, weight, Product::kForward, operands.input, operands.kernel, y, operands.products);
  const auto input_gradient = [kernel = operands.kernel, cache = operands.kernel_cache, products = operands.products,
                               input = x.input, form = x.form, &weight](Tape& t, const Tensor& dy) {
    Tensor dx = t.allocate(input.dtype(), input.shape(), "gradient");
    multiply(t,
             {.a = dy,
              .b = kernel,
              .c = dx,
              .aux = input,
              .activation = GemmActivation::kGeluGradient,
              .form = form,
              .b_cache = cache},
             products);
    show_unrounded(t, weight, Product::kInputGradient, dy, kernel, dx, products);
    return dx;
  };
  return record_linear(tape, y, SavedValue(x.y, operands.input), weight, bias, x.y.slot, input_gradient);
}

}  // namespace mantissa
