#include "core/ops/linear.h"

#include "core/kernels/elementwise/args.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/loss/args.h"
#include "core/kernels/reduction/args.h"
#include "core/ops/activation.h"
#include "core/ops/fp32_product.h"

namespace mantissa {
namespace {

// A linear layer whose operands are not rounded, in one pass. It holds no weight: backward functions may keep it.
struct Layer {
  Parameter& weight;
  Parameter* bias;
  DType dtype;  // compute dtype
  Fp32Products products;

  bool is_trained() const { return weight.is_trainable || (bias != nullptr && bias->is_trainable); }
  // Arguments of c = a W^T + b, beside those given.
  GemmArgs forward_args(Tape& tape, GemmArgs args) const {
    args.b = tape.weight(weight, dtype);
    if (bias) args.bias = tape.weight(*bias, dtype);
    args.trans_b = Transpose::kYes;
    args.b_cache = tape.packed_weight(weight, dtype);
    return args;
  }
  // c = a W, where a is dy and c is dx.
  void input_gradient(Tape& tape, GemmArgs args, bool is_first = true) const {
    args.b = tape.weight(weight, dtype);
    args.b_cache = tape.packed_weight(weight, dtype);
    multiply_shown(tape, {weight, Product::kInputGradient, is_first}, args, products);
  }
  void weight_gradient(Tape& tape, const Tensor& dy, const Tensor& x, bool is_first = true) const {
    const GradientTarget d_weight = tape.gradient_target(weight);
    const GradientTarget d_bias = bias ? tape.gradient_target(*bias) : GradientTarget{};
    multiply_shown(tape, {weight, Product::kWeightGradient, is_first},
                   {.a = dy,
                    .b = x,
                    .c = d_weight.tensor,
                    .bias_gradient = d_bias.tensor,
                    .trans_a = Transpose::kYes,
                    .mode = d_weight.mode,
                    .bias_gradient_mode = d_bias.mode},
                   products);
  }
  Tensor allocate_output(Tape& tape, const Tensor& x) const {
    return tape.allocate(dtype, {x.dim(0), weight.shape[0]});
  }
  // dx is fp32 for an fp32 x (a residual stream), even if the product reads 16-bit operands.
  Tensor allocate_input_gradient(Tape& tape, DType x, int64_t rows) const {
    return tape.allocate(x == DType::kF32 ? DType::kF32 : dtype, {rows, weight.shape[1]}, "gradient");
  }
};

// The input that the weight gradient reads. A frozen layer keeps no input.
SavedValue saved_input(const Layer& layer, const Var& x, const Tensor& cast) {
  return layer.is_trained() ? SavedValue(x, cast) : SavedValue(Var{}, Tensor());
}

void check_shapes(const char* op, const Tensor& x, const Parameter& weight, const Parameter* bias) {
  MANTISSA_CHECK(x.shape().rank() == 2 && weight.shape.rank() == 2 && x.dim(1) == weight.shape[1],
                 "[{}] '{}' has shape {} (N, K); x must have shape (R, K), got {}", op, weight.name, weight.shape,
                 x.shape());
  MANTISSA_CHECK(bias == nullptr || bias->shape == Shape{weight.shape[0]},
                 "[linear] bias of '{}' must have shape ({}), got {}", weight.name, weight.shape[0],
                 bias ? bias->shape : Shape{});
}

Layer make_layer(const char* op, const Tape& tape, const Tensor& x, Parameter& weight, Parameter* bias) {
  MANTISSA_CHECK(!tape.linear_formats().any(),
                 "[{}] '{}' rounds its operands: gelu and cross_entropy must be ops of their own", op, weight.name);
  check_shapes(op, x, weight, bias);
  return {weight, bias, linear_dtype(tape, x.dtype(), weight), tape.fp32_products()};
}

// Records y as the layer's result. `gradient` holds what the product of the input gradient needs besides its operands.
Var record_linear(Tape& tape, const Layer& layer, Tensor y, const SavedValue& input, DType x_dtype, int slot,
                  const GemmArgs& gradient = {}) {
  return tape.record(Op::kLinear, std::move(y), {Var{{}, slot}}, {&layer.weight, layer.bias},
                     [layer, input, x_dtype, slot, gradient](Tape& t, const Tensor& dy) {
                       if (slot >= 0) {
                         GemmArgs args = gradient;
                         args.a = dy;
                         args.c = layer.allocate_input_gradient(t, x_dtype, dy.dim(0));
                         layer.input_gradient(t, args);
                         t.give_gradient(Var{{}, slot}, std::move(args.c));
                       }
                       if (layer.is_trained()) layer.weight_gradient(t, dy, input.get(t));
                     });
}

// linear_cross_entropy(): input (R, K), targets, losses, lse (R), logits (chunk rows, V), d_input (R, K) or undefined.
struct ChunkedLoss {
  const Layer& layer;
  float softcap;
  Tensor input, targets, losses, lse, logits{}, d_input{};

  // Computes one chunk's losses and, in training, its gradients.
  void run(Tape& tape, int64_t begin, int64_t count, const Tensor& loss_sum) const {
    const bool is_first = begin == 0;
    const Tensor x = input.rows(begin, count), chunk = logits.rows(0, count);
    multiply_shown(tape, {layer.weight, Product::kForward, is_first}, layer.forward_args(tape, {.a = x, .c = chunk}),
                   layer.products);
    const CrossEntropyForwardArgs loss{.logits = chunk,
                                       .targets = targets.slice(begin, count),
                                       .losses = losses.slice(begin, count),
                                       .lse = lse.slice(begin, count),
                                       .loss_sum = loss_sum,
                                       .ignore_index = kIgnoreIndex,
                                       .softcap = softcap};
    tape.run(loss);
    if (!tape.training()) return;
    tape.run(CrossEntropyBackwardArgs{.logits = chunk,
                                      .targets = loss.targets,
                                      .lse = loss.lse,
                                      .scale = tape.options().loss_gradient,
                                      .ignore_index = kIgnoreIndex,
                                      .softcap = softcap});
    if (d_input.defined()) layer.input_gradient(tape, {.a = chunk, .c = d_input.rows(begin, count)}, is_first);
    if (layer.is_trained()) layer.weight_gradient(tape, chunk, x, is_first);
  }
};

// An adapter in one pass. It holds no weight: backward functions may keep it.
struct AdapterPass {
  LowRankMatrices adapter;
  DType dtype;  // compute dtype
  Fp32Products products;

  bool is_whole() const { return adapter.up->shape[0] == adapter.outputs; }

  // B (N, rank) with zeros in the rows of other projections, so that kernels need no strides.
  Tensor up_matrix(Tape& tape) const {
    const Tensor own = tape.weight(*adapter.up, dtype);
    if (is_whole()) return own;
    const Tensor whole = tape.allocate(dtype, {adapter.outputs, own.dim(1)}, "adapter");
    tape.run(FillArgs{.dst = whole});
    tape.backend().copy(own, whole.rows(adapter.first_row, own.dim(0)), tape.stream());
    return whole;
  }
  void multiply(Tape& tape, const Parameter& weight, Product product, const GemmArgs& args) const {
    multiply_shown(tape, {weight, product}, args, products);
  }
  void scale(Tape& tape, const Tensor& tensor) const {
    if (adapter.factor == 1.0f) return;
    tape.run(CastArgs{.src = tensor, .dst = tensor, .scale = adapter.factor});
  }
  // dB = dy^T h, of the rows that B has.
  void up_gradient(Tape& tape, const Tensor& dy, const Tensor& h) const {
    const GradientTarget target = tape.gradient_target(*adapter.up);
    GemmArgs args{.a = dy, .b = h, .c = target.tensor, .trans_a = Transpose::kYes, .mode = target.mode};
    if (is_whole()) return multiply(tape, *adapter.up, Product::kWeightGradient, args);
    args.c = tape.allocate(target.tensor.dtype(), {adapter.outputs, h.dim(1)}, "gradient");
    args.mode = GradientMode::kWrite;
    multiply(tape, *adapter.up, Product::kWeightGradient, args);
    const Tensor own = args.c.rows(adapter.first_row, adapter.up->shape[0]);
    if (target.mode == GradientMode::kWrite) return tape.backend().copy(own, target.tensor, tape.stream());
    tape.run(AddArgs{.a = target.tensor, .b = own, .y = target.tensor});
  }
  // Takes dy (R, N) and h (R, rank), both of the compute dtype.
  void backward(Tape& tape, const Var& source, DType x_dtype, const Tensor& x, const Tensor& h,
                const Tensor& dy) const {
    const Tensor dh = tape.allocate(dtype, h.shape(), "gradient");
    multiply(tape, *adapter.up, Product::kInputGradient, {.a = dy, .b = up_matrix(tape), .c = dh});
    up_gradient(tape, dy, h);
    scale(tape, dh);
    if (source.slot >= 0) {
      Tensor dx = tape.allocate(x_dtype == DType::kF32 ? DType::kF32 : dtype, x.shape(), "gradient");
      multiply(tape, *adapter.down, Product::kInputGradient,
               {.a = dh, .b = tape.weight(*adapter.down, dtype), .c = dx});
      tape.give_gradient(source, std::move(dx));
    }
    const GradientTarget target = tape.gradient_target(*adapter.down);
    multiply(tape, *adapter.down, Product::kWeightGradient,
             {.a = dh, .b = x, .c = target.tensor, .trans_a = Transpose::kYes, .mode = target.mode});
  }
};

}  // namespace

void multiply_shown(Tape& tape, const LayerProduct& of, const GemmArgs& args, Fp32Products products) {
  if (products == Fp32Products::kFp32 || args.a.dtype() != DType::kF32) {
    tape.run(args);
  } else {
    multiply(tape, args, products);
  }
  tape.show_product({.weight = of.weight,
                     .product = of.product,
                     .a = {.given = args.a, .multiplied = args.a},
                     .b = {.given = args.b, .multiplied = args.b},
                     .result = args.activation == GemmActivation::kGelu ? args.aux : args.c,
                     .fp32_products = products,
                     .is_first = of.is_first,
                     .has_derivative = args.activation == GemmActivation::kGeluGradient});
}

DType linear_dtype(const Tape& tape, DType x, const Parameter& weight) {
  return tape.compute_dtype(Op::kLinear, x, widest(x, weight.working_dtype));
}

Var linear(Tape& tape, Var x, Parameter& weight, Parameter* bias) {
  if (const LinearFormats formats = tape.linear_formats(); formats.any()) {
    check_shapes("linear", x.value, weight, bias);
    const DType dtype = linear_dtype(tape, x.value.dtype(), weight);
    return rounded_linear(tape, std::move(x), weight, bias, dtype, formats);
  }
  const Layer layer = make_layer("linear", tape, x.value, weight, bias);
  const DType x_dtype = x.value.dtype();
  const Tensor input = tape.cast(x.value, layer.dtype);
  const SavedValue saved = saved_input(layer, x, input);
  x.value = Tensor();  // the backward pass needs only the cast input
  const Tensor y = layer.allocate_output(tape, input);
  multiply_shown(tape, {weight, Product::kForward}, layer.forward_args(tape, {.a = input, .c = y}), layer.products);
  return record_linear(tape, layer, y, saved, x_dtype, x.slot);
}

GeluOutput linear_gelu(Tape& tape, Var x, Parameter& weight, Parameter* bias, GeluForm form) {
  const Layer layer = make_layer("linear", tape, x.value, weight, bias);
  const DType x_dtype = x.value.dtype();
  const Tensor layer_input = tape.cast(x.value, layer.dtype);
  const SavedValue saved = saved_input(layer, x, layer_input);
  x.value = Tensor();
  const Tensor input = layer.allocate_output(tape, layer_input), y = layer.allocate_output(tape, layer_input);
  multiply_shown(tape, {weight, Product::kForward},
                 layer.forward_args(
                     tape, {.a = layer_input, .c = y, .aux = input, .activation = GemmActivation::kGelu, .form = form}),
                 layer.products);
  Var made = record_linear(tape, layer, y, saved, x_dtype, x.slot);
  return {tape.remakeable(std::move(made), [input, form](Tape& t) { return gelu_of(t, input, form); }), input, form};
}

Var linear(Tape& tape, GeluOutput x, Parameter& weight, Parameter* bias) {
  const Layer layer = make_layer("linear", tape, x.y.value, weight, bias);
  MANTISSA_CHECK(layer.dtype == x.input.dtype(), "[linear] '{}' must compute in gelu's dtype {}, got {}", weight.name,
                 x.input.dtype(), layer.dtype);
  const Tensor y = layer.allocate_output(tape, x.y.value);
  multiply_shown(tape, {weight, Product::kForward}, layer.forward_args(tape, {.a = x.y.value, .c = y}), layer.products);
  return record_linear(tape, layer, y, saved_input(layer, x.y, x.y.value), layer.dtype, x.y.slot,
                       {.aux = x.input, .activation = GemmActivation::kGeluGradient, .form = x.form});
}

LossOutput linear_cross_entropy(Tape& tape, const Var& x, Parameter& weight, const Tensor& targets, int64_t chunk_rows,
                                float softcap) {
  MANTISSA_CHECK(chunk_rows > 0, "[linear_cross_entropy] a chunk must have rows, got {}", chunk_rows);
  MANTISSA_CHECK(!tape.training() || tape.options().loss_gradient.defined(),
                 "[linear_cross_entropy] the tape was made without a loss gradient");
  MANTISSA_CHECK(
      tape.is_recording() || !tape.training(),
      "[linear_cross_entropy] writes gradients as it goes: it must not be part of a segment that is run twice");
  const Layer layer = make_layer("linear_cross_entropy", tape, x.value, weight, nullptr);
  const int64_t rows = x.value.dim(0);
  chunk_rows = std::min(chunk_rows, rows);
  const int64_t chunks = divide_up(rows, chunk_rows);
  const DType wide = wide_of(layer.dtype);
  ChunkedLoss loss{.layer = layer,
                   .softcap = softcap,
                   .input = tape.cast(x.value, layer.dtype),
                   .targets = targets,
                   .losses = tape.allocate(wide, {rows}),
                   .lse = tape.allocate(wide, {rows})};
  if (tape.training() && x.slot >= 0) loss.d_input = layer.allocate_input_gradient(tape, x.value.dtype(), rows);
  const Tensor sums = tape.allocate(wide, {chunks, 1});
  Tensor sum = tape.allocate(wide, {1});
  loss.logits = tape.allocate(layer.dtype, {chunk_rows, weight.shape[0]}, "logits of a chunk");
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * chunk_rows;
    loss.run(tape, begin, std::min(chunk_rows, rows - begin), sums.slice(chunk, 1));
  }
  tape.run(ColumnSumArgs{.x = sums, .out = sum});

  const Var source{{}, x.slot};
  Var recorded = tape.record(Op::kCrossEntropy, std::move(sum), {source}, {&weight},
                             [source, d_input = loss.d_input](Tape& t, Tensor) mutable {
                               if (d_input.defined()) t.give_gradient(source, std::move(d_input));
                             });
  return {std::move(recorded), loss.losses};
}

Var low_rank(Tape& tape, Var x, const LowRankMatrices& adapter) {
  const Shape &down = adapter.down->shape, &up = adapter.up->shape;
  MANTISSA_CHECK(x.value.shape().rank() == 2 && down.rank() == 2 && up.rank() == 2 && x.value.dim(1) == down[1] &&
                     up[1] == down[0],
                 "[low_rank] x must be (R, K), '{}' (rank, K) and '{}' (n, rank), got {}, {} and {}",
                 adapter.down->name, adapter.up->name, x.value.shape(), down, up);
  MANTISSA_CHECK(adapter.first_row >= 0 && adapter.first_row + up[0] <= adapter.outputs,
                 "[low_rank] rows {} to {} of '{}' are not among {} outputs", adapter.first_row,
                 adapter.first_row + up[0], adapter.up->name, adapter.outputs);
  const DType dtype = linear_dtype(tape, x.value.dtype(), *adapter.down);
  const AdapterPass pass{.adapter = adapter,
                         .dtype = dtype,
                         .products = dtype == DType::kF32 ? tape.fp32_products() : Fp32Products::kFp32};
  const DType x_dtype = x.value.dtype();
  const Var source{{}, x.slot};
  const Tensor input = tape.cast(x.value, dtype);
  const SavedValue saved(x, input);
  x.value = Tensor();
  const int64_t rows = input.dim(0);
  const Tensor h = tape.allocate(dtype, {rows, down[0]}), y = tape.allocate(dtype, {rows, adapter.outputs});
  pass.multiply(tape, *adapter.down, Product::kForward,
                {.a = input, .b = tape.weight(*adapter.down, dtype), .c = h, .trans_b = Transpose::kYes});
  pass.scale(tape, h);
  pass.multiply(tape, *adapter.up, Product::kForward,
                {.a = h, .b = pass.up_matrix(tape), .c = y, .trans_b = Transpose::kYes});
  return tape.record(Op::kLinear, y, {source}, {adapter.down, adapter.up},
                     [pass, source, x_dtype, saved, h](Tape& t, const Tensor& dy) {
                       pass.backward(t, source, x_dtype, saved.get(t), h, dy);
                     });
}

}  // namespace mantissa
