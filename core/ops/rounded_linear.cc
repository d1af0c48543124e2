// The linear layer with 8-bit or 4-bit product operands.
#include "core/ops/fp32_product.h"
#include "core/ops/linear.h"
#include "core/ops/rounded_operand.h"

namespace mantissa {
namespace {

// A layer's settings in one pass.
struct Layer {
  Parameter& weight;
  Parameter* bias;
  DType dtype;  // compute dtype
  LinearFormats formats;
  CodeProducts codes;
  Fp32Products products;  // for operands that are not rounded
  uint32_t random_sites[std::size(kAllProducts)];

  OperandUse use(Product product, Role role) const {
    return {.product = product,
            .role = role,
            .format = formats.at(product, role),
            .values = values_dtype(formats, product, dtype),
            .transformed = is_transformed(formats, product),
            .random_site = random_sites[static_cast<size_t>(product)],
            .codes = codes.layouts(product, role)};
  }
  RoundedMatrix operand(Tape& tape, Product product, Role role, const Tensor& x) const {
    return round_operand(tape, x, weight, use(product, role));
  }
  RoundedMatrix weight_operand(Tape& tape, Product product) const {
    return round_weight(tape, weight, tape.weight(weight, dtype), use(product, Role::kWeight));
  }

  // Passes the product of `a` and `b` to the observer.
  struct Shown {
    Role role;
    Tensor given;
    RoundedMatrix made;
  };
  void show(const Tape& tape, Product product, const Shown& a, const Shown& b, const Tensor& result) const {
    if (!tape.is_observed()) return;
    tape.show_product({.weight = weight,
                       .product = product,
                       .a = observed(product, a),
                       .b = observed(product, b),
                       .result = result,
                       .fp32_products = products});
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

Layer make_layer(Tape& tape, int64_t rows, Parameter& weight, Parameter* bias, DType dtype,
                 const LinearFormats& formats) {
  const LayerExtents extents{
      .rows = rows, .inputs = weight.shape[1], .outputs = weight.shape[0], .dtype = dtype, .has_bias = bias != nullptr};
  Layer layer{.weight = weight,
              .bias = bias,
              .dtype = dtype,
              .formats = formats,
              .codes = CodeProducts(tape, formats, extents),
              .products = dtype == DType::kF32 ? tape.fp32_products() : Fp32Products::kFp32,
              .random_sites = {}};
  for (const Product product : kAllProducts) {
    if (!is_stochastic(formats, product, Role::kGradient)) continue;
    layer.random_sites[static_cast<size_t>(product)] = tape.next_random_site();
  }
  return layer;
}

// The product in `dtype`. Products of values are written in the values' dtype or fp32; products of codes in any dtype.
Tensor multiply(Tape& tape, const Layer& layer, GemmArgs product, Shape shape, DType dtype, const char* what) {
  const bool has_dtype = product.a.dtype() == DType::kU8 || product.a.dtype() == dtype;
  product.c = tape.allocate(has_dtype ? dtype : DType::kF32, shape, what);
  multiply(tape, product, layer.products);
  return tape.cast(product.c, dtype);
}

// x for the weight gradient. Kept rounded if the forward product reads the same rounding and the value itself is not
// needed; else kept as the value.
class SavedInput {
 public:
  SavedInput(const Layer& layer, const Var& x, const Tensor& value, const RoundedMatrix& forward, bool needs_value) {
    if (!needs_value && !x.remake && is_same(layer)) {
      rounded_ = forward;
      rounded_.codes = Tensor();  // the weight gradient reads the transposed codes
    } else {
      value_.emplace(x, value);
    }
  }

  // Undefined if only the rounded operand is kept.
  Tensor value(Tape& tape) const { return value_ ? value_->get(tape) : Tensor(); }
  RoundedMatrix operand(Tape& tape, const Layer& layer, const Tensor& value) const {
    return value.defined() ? layer.operand(tape, Product::kWeightGradient, Role::kActivation, value) : rounded_;
  }

 private:
  // With one scale per tensor the axis does not matter. Codes in both layouts were made together.
  static bool is_same(const Layer& layer) {
    const auto forward = layer.use(Product::kForward, Role::kActivation),
               backward = layer.use(Product::kWeightGradient, Role::kActivation);
    return forward.format && block_length(forward.format->scaling) == 0 && forward.format == backward.format &&
           forward.values == backward.values && !backward.transformed && forward.codes.any() == backward.codes.any();
  }

  RoundedMatrix rounded_;
  std::optional<SavedValue> value_;
};

// The gradient of the layer's input. If both products that read dy read the same codes, one pass makes them all, and
// `shared` returns those for the weight gradient.
Tensor input_gradient(Tape& tape, const Layer& layer, const Tensor& dy, Shape shape, DType dtype,
                      std::optional<RoundedMatrix>& shared) {
  constexpr Product kProduct = Product::kInputGradient;
  OperandUse use = layer.use(kProduct, Role::kGradient);
  if (layer.codes.shares(Role::kGradient)) use.codes.transposed = true;
  const RoundedMatrix a = round_operand(tape, dy, layer.weight, use), b = layer.weight_operand(tape, kProduct);
  if (layer.codes.shares(Role::kGradient)) shared = {.transposed_codes = a.transposed_codes, .scale = a.scale};
  Tensor dx = multiply(tape, layer, rounded_product(kProduct, layer.formats, a, b), shape, dtype, "gradient");
  layer.show(tape, kProduct, {Role::kGradient, dy, a}, {Role::kWeight, tape.weight(layer.weight, layer.dtype), b}, dx);
  return dx;
}

void accumulate_gradients(Tape& tape, const Layer& layer, const SavedInput& input, const Tensor& dy,
                          const std::optional<RoundedMatrix>& rounded_dy) {
  constexpr Product kProduct = Product::kWeightGradient;
  const GradientTarget d_weight = tape.gradient_target(layer.weight);
  const Tensor x = input.value(tape);
  const RoundedMatrix a = rounded_dy ? *rounded_dy : layer.operand(tape, kProduct, Role::kGradient, dy),
                      b = input.operand(tape, layer, x);
  GemmArgs product = rounded_product(kProduct, layer.formats, a, b);
  product.c = d_weight.tensor;
  product.mode = d_weight.mode;
  multiply(tape, product, layer.products);
  layer.show(tape, kProduct, {Role::kGradient, dy, a}, {Role::kActivation, x, b}, d_weight.tensor);
  if (layer.bias == nullptr) return;
  const GradientTarget d_bias = tape.gradient_target(*layer.bias);
  tape.backend().run(ColumnSumArgs{.x = dy, .out = d_bias.tensor, .mode = d_bias.mode}, tape.stream());
}

}  // namespace

Var rounded_linear(Tape& tape, Var x, Parameter& weight, Parameter* bias, DType dtype, const LinearFormats& formats) {
  const Layer layer = make_layer(tape, x.value.dim(0), weight, bias, dtype, formats);
  const DType x_dtype = x.value.dtype();
  const Shape x_shape = x.value.shape(), y_shape{x_shape[0], weight.shape[0]};
  const Tensor value = tape.cast(x.value, dtype);
  OperandUse use = layer.use(Product::kForward, Role::kActivation);
  const bool keeps_rounded = tape.is_recording() && !x.remake && !tape.is_observed();
  if (keeps_rounded && layer.codes.shares(Role::kActivation)) use.codes.transposed = true;
  const RoundedMatrix a = round_operand(tape, value, weight, use), b = layer.weight_operand(tape, Product::kForward);
  GemmArgs product = rounded_product(Product::kForward, formats, a, b);
  if (bias) product.bias = tape.weight(*bias, dtype);
  const Tensor y = multiply(tape, layer, product, y_shape, dtype, "activation");
  layer.show(tape, Product::kForward, {Role::kActivation, value, a}, {Role::kWeight, tape.weight(weight, dtype), b}, y);
  const SavedInput input(layer, x, value, a, tape.is_observed());
  const int slot = x.slot;
  x.value = Tensor();
  return tape.record(Op::kLinear, y, {Var{{}, slot}}, {&weight, bias},
                     [layer, input, slot, x_dtype, x_shape](Tape& t, const Tensor& dy) {
                       std::optional<RoundedMatrix> rounded_dy;
                       if (slot >= 0) {
                         const DType d_input = x_dtype == DType::kF32 ? DType::kF32 : dy.dtype();
                         t.give_gradient(Var{{}, slot}, input_gradient(t, layer, dy, x_shape, d_input, rounded_dy));
                       }
                       accumulate_gradients(t, layer, input, dy, rounded_dy);
                     });
}

}  // namespace mantissa
