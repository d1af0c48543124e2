#include "core/ops/rounded_linear.h"

#include "core/autograd/saved_value.h"
#include "core/ops/rounded_operand.h"

namespace mantissa {
namespace {

// A layer in one pass.
struct Layer {
  Parameter& weight;
  Parameter* bias;
  DType dtype;  // that it computes in
  LinearFormats formats;
  uint32_t random_sites[std::size(kAllProducts)];

  OperandUse use(Product product, Role role) const {
    return {.product = product,
            .role = role,
            .format = formats.at(product, role),
            .values = values_dtype(formats, product, dtype),
            .transformed = is_transformed(formats, product),
            .random_site = random_sites[static_cast<size_t>(product)]};
  }
  RoundedMatrix operand(Tape& tape, Product product, Role role, const Tensor& x) const {
    return round_operand(tape, x, weight, use(product, role));
  }
  RoundedMatrix weight_operand(Tape& tape, Product product) const {
    return round_weight(tape, weight, tape.weight(weight, dtype), use(product, Role::kWeight));
  }

  // Shows a product of `a` and `b`, made of the operands of these roles.
  struct Shown {
    Role role;
    Tensor given;
    RoundedMatrix made;
  };
  void show(const Tape& tape, Product product, const Shown& a, const Shown& b, const Tensor& result) const {
    if (tape.is_observed()) tape.show_product(weight, product, observed(product, a), observed(product, b), result);
  }

 private:
  ObservedOperand observed(Product product, const Shown& shown) const {
    const OperandUse how = use(product, shown.role);
    return {.given = shown.given,
            .multiplied = shown.made.values,
            .scale = shown.made.scale,
            .format = how.format,
            .axis = how.format ? axis_of(how) : BlockAxis::kColumns,
            .transformed = how.transformed};
  }
};

Layer make_layer(Tape& tape, Parameter& weight, Parameter* bias, DType dtype, const LinearFormats& formats) {
  Layer layer{.weight = weight, .bias = bias, .dtype = dtype, .formats = formats, .random_sites = {}};
  for (const Product product : kAllProducts) {
    if (!is_stochastic(formats, product, Role::kGradient)) continue;
    layer.random_sites[static_cast<size_t>(product)] = tape.next_random_site();
  }
  return layer;
}

// a * b as `product` has them, in `dtype`. A product's result has its operands' dtype or is fp32.
Tensor multiply(Tape& tape, GemmArgs product, const RoundedMatrix& a, const RoundedMatrix& b, Shape shape, DType dtype,
                const char* what) {
  product.a = a.values, product.a_scale = a.scale;
  product.b = b.values, product.b_scale = b.scale;
  product.c = tape.allocate(dtype == a.values.dtype() ? dtype : DType::kF32, shape, what);
  tape.backend().gemm(product, tape.stream());
  return tape.cast(product.c, dtype);
}

// x as the weight gradient reads it: rounded already where the forward product reads the same and nobody asks for the
// value, else the value itself.
class SavedInput {
 public:
  SavedInput(const Layer& layer, const Var& x, const Tensor& value, const RoundedMatrix& forward, bool needs_value) {
    if (!needs_value && !x.remake && is_same(layer)) {
      rounded_ = forward;
    } else {
      value_.emplace(x, value);
    }
  }

  // Undefined where only what it was rounded to is kept.
  Tensor value(Tape& tape) const { return value_ ? value_->get(tape) : Tensor(); }
  RoundedMatrix operand(Tape& tape, const Layer& layer, const Tensor& value) const {
    return value.defined() ? layer.operand(tape, Product::kWeightGradient, Role::kActivation, value) : rounded_;
  }

 private:
  // One scale a tensor: then the axis does not matter.
  static bool is_same(const Layer& layer) {
    const auto forward = layer.use(Product::kForward, Role::kActivation),
               backward = layer.use(Product::kWeightGradient, Role::kActivation);
    return forward.format && block_length(forward.format->scaling) == 0 && forward.format == backward.format &&
           forward.values == backward.values && !backward.transformed;
  }

  RoundedMatrix rounded_;
  std::optional<SavedValue> value_;
};

void accumulate_gradients(Tape& tape, const Layer& layer, const SavedInput& input, const Tensor& dy) {
  constexpr Product kProduct = Product::kWeightGradient;
  const GradientTarget d_weight = tape.gradient_target(layer.weight);
  const Tensor x = input.value(tape);
  const RoundedMatrix a = layer.operand(tape, kProduct, Role::kGradient, dy), b = input.operand(tape, layer, x);
  tape.backend().gemm({.a = a.values,
                       .b = b.values,
                       .c = d_weight.tensor,
                       .a_scale = a.scale,
                       .b_scale = b.scale,
                       .trans_a = Transpose::kYes,
                       .mode = d_weight.mode},
                      tape.stream());
  layer.show(tape, kProduct, {Role::kGradient, dy, a}, {Role::kActivation, x, b}, d_weight.tensor);
  if (layer.bias == nullptr) return;
  const GradientTarget d_bias = tape.gradient_target(*layer.bias);
  tape.backend().column_sum({.x = dy, .out = d_bias.tensor, .mode = d_bias.mode}, tape.stream());
}

// dx = dy W, in `dtype`.
Tensor input_gradient(Tape& tape, const Layer& layer, const Tensor& dy, Shape shape, DType dtype) {
  constexpr Product kProduct = Product::kInputGradient;
  const RoundedMatrix a = layer.operand(tape, kProduct, Role::kGradient, dy), b = layer.weight_operand(tape, kProduct);
  Tensor dx = multiply(tape, {}, a, b, shape, dtype, "gradient");
  layer.show(tape, kProduct, {Role::kGradient, dy, a}, {Role::kWeight, tape.weight(layer.weight, layer.dtype), b}, dx);
  return dx;
}

}  // namespace

Var rounded_linear(Tape& tape, Var x, Parameter& weight, Parameter* bias, DType dtype, const LinearFormats& formats) {
  const Layer layer = make_layer(tape, weight, bias, dtype, formats);
  const DType x_dtype = x.value.dtype();
  const Shape x_shape = x.value.shape(), y_shape{x_shape[0], weight.shape[0]};
  const Tensor value = tape.cast(x.value, dtype);
  const RoundedMatrix a = layer.operand(tape, Product::kForward, Role::kActivation, value);
  const RoundedMatrix b = layer.weight_operand(tape, Product::kForward);
  const Tensor y = multiply(tape, {.bias = bias ? tape.weight(*bias, dtype) : Tensor(), .trans_b = Transpose::kYes}, a,
                            b, y_shape, dtype, "activation");
  layer.show(tape, Product::kForward, {Role::kActivation, value, a}, {Role::kWeight, tape.weight(weight, dtype), b}, y);
  const SavedInput input(layer, x, value, a, tape.is_observed());
  const int slot = x.slot;
  x.value = Tensor();
  std::vector<Parameter*> parameters{&weight};
  if (bias) parameters.push_back(bias);
  return tape.record(Op::kLinear, y, {Var{{}, slot}}, parameters,
                     [layer, input, slot, x_dtype, x_shape](Tape& t, const Tensor& dy) {
                       if (slot >= 0) {
                         const DType d_input = x_dtype == DType::kF32 ? DType::kF32 : dy.dtype();
                         t.give_gradient(Var{{}, slot}, input_gradient(t, layer, dy, x_shape, d_input));
                       }
                       accumulate_gradients(t, layer, input, dy);
                     });
}

}  // namespace mantissa
