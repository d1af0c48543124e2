#include "core/ops/attention.h"

#include <cmath>

#include "core/kernels/embedding/args.h"

namespace mantissa {
namespace {

// Keeps the keys and values of qkv. In a step it also returns the attention of the rows to their texts.
Tensor through_cache(Tape& tape, KeyValueCache& cache, const Tensor& qkv, AttentionShape shape) {
  MANTISSA_CHECK(!tape.training(), "[attention] '{}': a cache of keys and values is for evaluation", tape.layer());
  const Tensor kept = cache.of_layer(tape.layer(), qkv.dtype(), shape);
  tape.run(AttentionAppendArgs{.qkv = qkv,
                               .sequences = cache.row_sequences(),
                               .positions = cache.row_positions(),
                               .cache = kept,
                               .shape = shape});
  if (cache.pass() == CachedPass::kPrompt) return {};
  const Tensor out = tape.allocate(qkv.dtype(), {qkv.dim(0), shape.out_row()});
  tape.run(AttentionDecodeArgs{.qkv = qkv,
                               .sequences = cache.row_sequences(),
                               .positions = cache.row_positions(),
                               .cache = kept,
                               .out = out,
                               .shape = shape});
  return out;
}

}  // namespace

Var attention(Tape& tape, Var qkv, AttentionShape shape, const Tensor& starts) {
  const int64_t rows = qkv.value.dim(0);
  const int64_t packed = shape.qkv_row();
  MANTISSA_CHECK(qkv.value.dim(1) == packed, "[attention] qkv must be (R, ({} + 2 * {}) * {}) = (R, {}), got {}",
                 shape.num_heads, shape.num_kv_heads, shape.head_dim, packed, qkv.value.shape());
  MANTISSA_CHECK(shape.sequence_length > 0 && rows % shape.sequence_length == 0,
                 "[attention] {} rows are not a whole number of sequences of {}", rows, shape.sequence_length);
  MANTISSA_CHECK(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
                 "[attention] {} query heads are not a multiple of {} key/value heads", shape.num_heads,
                 shape.num_kv_heads);
  shape.batch = rows / shape.sequence_length;
  const DType dtype = tape.compute_dtype(Op::kAttention, qkv.value.dtype(), qkv.value.dtype());
  const Tensor packed_input = tape.cast(qkv.value, dtype);
  if (shape.scale == 0.0f) shape.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  if (KeyValueCache* const cache = tape.options().cache) {
    Tensor continued = through_cache(tape, *cache, packed_input, shape);
    if (continued.defined()) return tape.record(Op::kAttention, std::move(continued), {qkv}, {}, nullptr);
  }
  Tensor out = tape.allocate(dtype, {rows, shape.out_row()});
  const Tensor lse = tape.allocate(wide_of(dtype), {shape.batch, shape.num_heads, shape.sequence_length});
  tape.run(AttentionForwardArgs{.qkv = packed_input, .starts = starts, .out = out, .lse = lse, .shape = shape});
  const int slot = qkv.slot;
  qkv.value = Tensor();
  return tape.record(Op::kAttention, out, {qkv}, {}, [=](Tape& t, Tensor d_out) {
    Tensor d_qkv = t.allocate(dtype, packed_input.shape(), "gradient");
    t.run(AttentionBackwardArgs{
        .qkv = packed_input, .starts = starts, .out = out, .lse = lse, .d_out = d_out, .d_qkv = d_qkv, .shape = shape});
    t.give_gradient(Var{{}, slot}, std::move(d_qkv));
  });
}

Var rope(Tape& tape, Var qkv, const AttentionShape& shape, const RopeFrequencies& frequencies, const Tensor& starts) {
  MANTISSA_CHECK(shape.head_dim % 2 == 0, "[rope] head_dim must be even, got {}", shape.head_dim);
  const DType dtype = tape.compute_dtype(Op::kRope, qkv.value.dtype(), qkv.value.dtype());
  const Var input{{}, qkv.slot};
  Tensor x = tape.cast(qkv.value, dtype);
  qkv.value = Tensor();
  RopeArgs args{.x = x,
                .starts = starts,
                .y = x,
                .sequence_length = shape.sequence_length,
                .row_heads = shape.num_heads + 2 * shape.num_kv_heads,
                .rotated_heads = shape.num_heads + shape.num_kv_heads,
                .head_dim = shape.head_dim,
                .frequencies = frequencies};
  const auto in_place_or_copy = [](Tape& t, RopeArgs& rope_args, Tensor& tensor) {
    rope_args.x = rope_args.y = Tensor();
    Tensor y = tensor.unique() ? tensor : t.allocate(tensor.dtype(), tensor.shape());
    rope_args.x = tensor;
    rope_args.y = y;
    t.run(rope_args);
    return y;
  };
  Tensor y = in_place_or_copy(tape, args, x);
  args.x = args.y = Tensor();
  x = Tensor();
  return tape.record(Op::kRope, std::move(y), {input}, {}, [input, args, in_place_or_copy](Tape& t, Tensor dy) {
    RopeArgs inverse = args;
    inverse.rotation = Rotation::kInverse;
    Tensor dx = in_place_or_copy(t, inverse, dy);
    inverse.x = inverse.y = Tensor();
    t.give_gradient(input, std::move(dx));
  });
}

}  // namespace mantissa
