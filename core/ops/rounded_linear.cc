// The linear layer with 8-bit or 4-bit product operands.
#include "core/kernels/gemm/args.h"
#include "core/kernels/reduction/args.h"
#include "core/ops/fp32_product.h"
#include "core/ops/linear.h"
#include "core/ops/rounded_operand.h"

namespace mantissa {
namespace {

// A product's operand before and after it was rounded.
struct Operand {
  Role role;
  Tensor given;
  RoundedMatrix made;
};

// A layer in one pass. It holds no weight: backward functions may keep it.
struct RoundedLayer {
  Parameter& weight;
  Parameter* bias;
  DType dtype;  // compute dtype
  LinearFormats formats;
  CodeProducts codes;
  Fp32Products products;  // for operands that are not rounded
  uint32_t random_sites[std::size(kAllProducts)] = {};

  OperandUse use(const Tape& tape, Product product, Role role) const {
    return {.product = product,
            .role = role,
            .format = formats.at(product, role),
            .values = values_dtype(tape, formats, product, dtype),
            .transformed = is_transformed(formats, product),
            .random_site = random_sites[static_cast<size_t>(product)],
            .codes = codes.layouts(product, role)};
  }
  // both_layouts: makes the codes that another product reads as well.
  Operand operand(Tape& tape, Product product, Role role, const Tensor& x, bool both_layouts = false) const {
    OperandUse how = use(tape, product, role);
    if (both_layouts) how.codes.transposed = true;
    return {role, x, round_operand(tape, x, weight, how)};
  }
  Operand weight_operand(Tape& tape, Product product) const {
    const Tensor copy = tape.weight(weight, dtype);
    return {Role::kWeight, copy, round_weight(tape, weight, copy, use(tape, product, Role::kWeight))};
  }

  // The product a b [+ bias] in `result`, shown to the observer.
  Tensor multiply(Tape& tape, Product product, const Operand& a, const Operand& b, Shape shape, DType result,
                  const Tensor& added = {}) const {
    GemmArgs args = rounded_product(product, formats, a.made, b.made);
    args.bias = added;
    // Products of values are written in the values' dtype or fp32; products of codes in any dtype.
    const bool has_dtype = args.a.dtype() == DType::kU8 || args.a.dtype() == result;
    args.c = tape.allocate(has_dtype ? result : DType::kF32, shape);
    mantissa::multiply(tape, args, products);
    Tensor made = tape.cast(args.c, result);
    show(tape, product, a, b, made);
    return made;
  }
  void show(const Tape& tape, Product product, const Operand& a, const Operand& b, const Tensor& result) const {
    if (!tape.is_observed()) return;
    tape.show_product({.weight = weight,
                       .product = product,
                       .a = observed(tape, product, a),
                       .b = observed(tape, product, b),
                       .result = result,
                       .fp32_products = products});
  }

 private:
  ObservedOperand observed(const Tape& tape, Product product, const Operand& operand) const {
    const OperandUse how = use(tape, product, operand.role);
    return {.given = operand.given,
            .multiplied = operand.made.values,
            .scale = operand.made.scale,
            .format = how.format,
            .axis = how.format ? axis_of(how) : BlockAxis::kColumns,
            .transformed = how.transformed};
  }
};

RoundedLayer make_rounded_layer(Tape& tape, int64_t rows, Parameter& weight, Parameter* bias, DType dtype,
                                const LinearFormats& formats) {
  const LayerExtents extents{
      .rows = rows, .inputs = weight.shape[1], .outputs = weight.shape[0], .dtype = dtype, .has_bias = bias != nullptr};
  RoundedLayer layer{.weight = weight,
                     .bias = bias,
                     .dtype = dtype,
                     .formats = formats,
                     .codes = CodeProducts(tape, formats, extents),
                     .products = dtype == DType::kF32 ? tape.fp32_products() : Fp32Products::kFp32};
  for (const Product product : kAllProducts) {
    if (!is_stochastic(formats, product, Role::kGradient)) continue;
    layer.random_sites[static_cast<size_t>(product)] = tape.next_random_site();
  }
  return layer;
}

// x for the weight gradient. Kept rounded if the forward product reads the same rounding and the value is not needed.
class SavedInput {
 public:
  SavedInput(const Tape& tape, const RoundedLayer& layer, const Var& x, const Operand& forward, bool needs_value) {
    if (!needs_value && !x.remake && is_same(tape, layer)) {
      rounded_ = forward.made;
      rounded_.codes = Tensor();  // the weight gradient reads the transposed codes
    } else {
      value_.emplace(x, forward.given);
    }
  }
  // Its `given` is undefined if only the rounded operand is kept.
  Operand operand(Tape& tape, const RoundedLayer& layer) const {
    if (!value_) return {Role::kActivation, {}, rounded_};
    return layer.operand(tape, Product::kWeightGradient, Role::kActivation, value_->get(tape));
  }

 private:
  // With one scale per tensor the axis does not matter. Codes in both layouts were made together.
  static bool is_same(const Tape& tape, const RoundedLayer& layer) {
    const auto forward = layer.use(tape, Product::kForward, Role::kActivation),
               backward = layer.use(tape, Product::kWeightGradient, Role::kActivation);
    return forward.format && block_length(forward.format->scaling) == 0 && forward.format == backward.format &&
           forward.values == backward.values && !backward.transformed && forward.codes.any() == backward.codes.any();
  }

  RoundedMatrix rounded_;
  std::optional<SavedValue> value_;
};

// The gradient of the layer's input. If both products of dy read the same codes, one pass makes them all, and `shared`
// returns the codes for the weight gradient.
Tensor input_gradient(Tape& tape, const RoundedLayer& layer, const Tensor& dy, Shape shape, DType dtype,
                      std::optional<Operand>& shared) {
  constexpr Product kProduct = Product::kInputGradient;
  const bool shares = layer.codes.shares(Role::kGradient);
  const Operand a = layer.operand(tape, kProduct, Role::kGradient, dy, shares);
  const Operand b = layer.weight_operand(tape, kProduct);
  if (shares) {
    shared = a;
    shared->made.codes = Tensor();
  }
  return layer.multiply(tape, kProduct, a, b, shape, dtype);
}

void accumulate_gradients(Tape& tape, const RoundedLayer& layer, const SavedInput& input, const Tensor& dy,
                          const std::optional<Operand>& rounded_dy) {
  constexpr Product kProduct = Product::kWeightGradient;
  const GradientTarget d_weight = tape.gradient_target(layer.weight);
  const Operand b = input.operand(tape, layer);
  const Operand a = rounded_dy ? *rounded_dy : layer.operand(tape, kProduct, Role::kGradient, dy);
  GemmArgs args = rounded_product(kProduct, layer.formats, a.made, b.made);
  args.c = d_weight.tensor;
  args.mode = d_weight.mode;
  multiply(tape, args, layer.products);
  layer.show(tape, kProduct, a, b, d_weight.tensor);
  if (layer.bias == nullptr) return;
  const GradientTarget d_bias = tape.gradient_target(*layer.bias);
  tape.run(ColumnSumArgs{.x = dy, .out = d_bias.tensor, .mode = d_bias.mode});
}

}  // namespace

Var rounded_linear(Tape& tape, Var x, Parameter& weight, Parameter* bias, DType dtype, const LinearFormats& formats) {
  const RoundedLayer layer = make_rounded_layer(tape, x.value.dim(0), weight, bias, dtype, formats);
  const DType x_dtype = x.value.dtype();
  const Shape x_shape = x.value.shape();
  const bool keeps_rounded = tape.is_recording() && !x.remake && !tape.is_observed();
  const Operand a = layer.operand(tape, Product::kForward, Role::kActivation, tape.cast(x.value, dtype),
                                  keeps_rounded && layer.codes.shares(Role::kActivation));
  const Operand b = layer.weight_operand(tape, Product::kForward);
  const Tensor y = layer.multiply(tape, Product::kForward, a, b, {x_shape[0], weight.shape[0]}, dtype,
                                  bias ? tape.weight(*bias, dtype) : Tensor());
  const bool is_trained = weight.is_trainable || (bias != nullptr && bias->is_trainable);
  std::optional<SavedInput> input;  // of a frozen layer none is kept
  if (is_trained) input.emplace(tape, layer, x, a, tape.is_observed());
  const Var source{{}, x.slot};
  x.value = Tensor();
  return tape.record(Op::kLinear, y, {source}, {&weight, bias},
                     [layer, input, source, x_dtype, x_shape](Tape& t, const Tensor& dy) {
                       std::optional<Operand> rounded_dy;
                       if (source.slot >= 0) {
                         const DType d_input = x_dtype == DType::kF32 ? DType::kF32 : dy.dtype();
                         t.give_gradient(source, input_gradient(t, layer, dy, x_shape, d_input, rounded_dy));
                       }
                       if (input) accumulate_gradients(t, layer, *input, dy, rounded_dy);
                     });
}

}  // namespace mantissa
