#include "core/ops/norm.h"

#include "core/kernels/norm/args.h"

namespace mantissa {
namespace {

// Forward and Backward: the kernels' arguments of either norm.
template <typename Forward, typename Backward>
NormedSum record_norm(Tape& tape, Op op, const DeferredSum& x, Parameter& weight, Parameter* bias, float epsilon,
                      DType out) {
  constexpr bool kIsLayerNorm = std::is_same_v<Forward, LayerNormForwardArgs>;
  const int64_t rows = x.a.value.dim(0), channels = x.a.value.dim(1);
  MANTISSA_CHECK(weight.shape == Shape{channels}, "[{}] weight must have shape ({}), got {}", name(op), channels,
                 weight.shape);
  MANTISSA_CHECK(bias == nullptr || bias->shape == weight.shape, "[{}] bias must have shape ({}), got {}", name(op),
                 channels, bias ? bias->shape : Shape{});
  const auto run = [&weight, bias](Tape& t, Forward args) {
    args.weight = t.weight(weight);
    if constexpr (kIsLayerNorm) {
      if (bias) args.bias = t.weight(*bias);
    }
    t.run(args);
    return args.y;
  };
  Forward args{.x = x.a.value, .residual = x.b.value};
  if (x.is_deferred()) args.sum = tape.allocate(x.dtype, x.a.value.shape());
  args.y = tape.allocate(out, {rows, channels});
  const DType wide = wide_of(x.a.value.dtype());
  if constexpr (kIsLayerNorm) args.mean = tape.allocate(wide, {rows});
  args.rstd = tape.allocate(wide, {rows});
  args.epsilon = epsilon;
  Tensor y = run(tape, args);
  const Var sum = x.is_deferred() ? record_sum(tape, x, args.sum) : x.a;
  // Kept for the backward pass. Normalizing the stored sum again gives the same statistics.
  args.x = sum.value;
  args.residual = args.sum = args.y = Tensor();
  const Var source{{}, sum.slot};
  Var normed = tape.record(
      op, std::move(y), {source}, {&weight, bias}, [source, args, &weight, bias](Tape& t, const Tensor& dy) {
        const GradientTarget dx = source.slot >= 0
                                      ? t.gradient_target(source)
                                      : GradientTarget{t.allocate(args.x.dtype(), args.x.shape(), "gradient")};
        const GradientTarget d_weight = t.gradient_target(weight);
        Backward backward{.x = args.x, .dy = dy, .weight = t.weight(weight)};
        if constexpr (kIsLayerNorm) {
          backward.mean = args.mean;
          if (bias) {
            const GradientTarget d_bias = t.gradient_target(*bias);
            backward.d_bias = d_bias.tensor, backward.bias_mode = d_bias.mode;
          }
        }
        backward.rstd = args.rstd;
        backward.dx = dx.tensor, backward.mode = dx.mode;
        backward.d_weight = d_weight.tensor, backward.weight_mode = d_weight.mode;
        t.run(backward);
      });
  return {sum, tape.remakeable(std::move(normed), [args, run, out](Tape& t) {
            Forward again = args;
            again.y = t.allocate(out, args.x.shape());
            return run(t, again);
          })};
}

}  // namespace

NormedSum add_layer_norm(Tape& tape, DeferredSum x, Parameter& weight, Parameter* bias, float epsilon, DType out) {
  return record_norm<LayerNormForwardArgs, LayerNormBackwardArgs>(tape, Op::kLayerNorm, x, weight, bias, epsilon, out);
}

NormedSum add_rms_norm(Tape& tape, DeferredSum x, Parameter& weight, float epsilon, DType out) {
  return record_norm<RmsNormForwardArgs, RmsNormBackwardArgs>(tape, Op::kRmsNorm, x, weight, nullptr, epsilon, out);
}

Var layer_norm(Tape& tape, Var x, Parameter& weight, Parameter* bias, float epsilon, DType out) {
  return add_layer_norm(tape, {.a = std::move(x)}, weight, bias, epsilon, out).normed;
}

Var rms_norm(Tape& tape, Var x, Parameter& weight, float epsilon, DType out) {
  return add_rms_norm(tape, {.a = std::move(x)}, weight, epsilon, out).normed;
}

Var head_norm(Tape& tape, Var qkv, const AttentionShape& shape, Parameter& query_weight, Parameter& key_weight,
              float epsilon) {
  const Tensor x = std::move(qkv.value);
  const int64_t rows = x.dim(0), dim = shape.head_dim, heads = shape.num_heads + 2 * shape.num_kv_heads;
  MANTISSA_CHECK(x.dim(1) == shape.qkv_row(), "[head_norm] qkv must be (R, ({} + 2 * {}) * {}) = (R, {}), got {}",
                 shape.num_heads, shape.num_kv_heads, dim, shape.qkv_row(), x.shape());
  struct Part {
    Parameter& weight;
    HeadRange heads;
    Tensor rstd;
  };
  const DType wide = wide_of(x.dtype());
  const std::array parts{
      Part{query_weight, {heads, 0, shape.num_heads}, tape.allocate(wide, {rows * shape.num_heads})},
      Part{key_weight, {heads, shape.num_heads, shape.num_kv_heads}, tape.allocate(wide, {rows * shape.num_kv_heads})}};
  const auto by_head = [heads, dim](const Tensor& tensor) { return tensor.view({tensor.dim(0) * heads, dim}); };
  const auto own_copy = [](Tape& t, const Tensor& tensor) {
    Tensor copy = t.allocate(tensor.dtype(), tensor.shape());
    t.backend().copy(tensor, copy, t.stream());
    return copy;
  };
  Tensor y = x.unique() && !tape.is_recording() ? x : own_copy(tape, x);
  for (const Part& part : parts) {
    MANTISSA_CHECK(part.weight.shape == Shape{dim}, "[head_norm] weights must have shape ({}), got {}", dim,
                   part.weight.shape);
    tape.run(RmsNormForwardArgs{.x = by_head(x),
                                .weight = tape.weight(part.weight),
                                .y = by_head(y),
                                .rstd = part.rstd,
                                .epsilon = epsilon,
                                .heads = part.heads});
  }
  const Var input{{}, qkv.slot};
  return tape.record(Op::kRmsNorm, std::move(y), {input}, {&query_weight, &key_weight},
                     [input, x, parts, by_head, own_copy](Tape& t, const Tensor& dy) {
                       Tensor dx = dy.unique() ? dy : own_copy(t, dy);
                       for (const Part& part : parts) {
                         const GradientTarget d_weight = t.gradient_target(part.weight);
                         t.run(RmsNormBackwardArgs{.x = by_head(x),
                                                   .dy = by_head(dx),
                                                   .weight = t.weight(part.weight),
                                                   .rstd = part.rstd,
                                                   .dx = by_head(dx),
                                                   .d_weight = d_weight.tensor,
                                                   .weight_mode = d_weight.mode,
                                                   .heads = part.heads});
                       }
                       t.give_gradient(input, std::move(dx));
                     });
}

}  // namespace mantissa
