#include "core/ops/attention.h"

#include <cmath>

namespace mantissa {

Var attention(Tape& tape, Var qkv, const AttentionShape& shape) {
  const int64_t rows = qkv.value.dim(0);
  const int64_t packed = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  MANTISSA_CHECK(qkv.value.dim(1) == packed, "[attention] qkv must be (R, ({} + 2 * {}) * {}) = (R, {}), got {}",
                 shape.num_heads, shape.num_kv_heads, shape.head_dim, packed, qkv.value.shape());
  MANTISSA_CHECK(shape.sequence_length > 0 && rows % shape.sequence_length == 0,
                 "[attention] {} rows are not a whole number of sequences of {}", rows, shape.sequence_length);
  MANTISSA_CHECK(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
                 "[attention] {} query heads are not a multiple of {} key/value heads", shape.num_heads,
                 shape.num_kv_heads);
  const int64_t batch = rows / shape.sequence_length;
  const DType dtype = tape.compute_dtype(Op::kAttention, qkv.value.dtype(), qkv.value.dtype());
  const Tensor packed_input = tape.cast(qkv.value, dtype);
  Tensor out = tape.allocate(dtype, {rows, shape.num_heads * shape.head_dim});
  const Tensor lse = tape.allocate(DType::kF32, {batch, shape.num_heads, shape.sequence_length});
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  tape.backend().attention_forward({.qkv = packed_input,
                                    .out = out,
                                    .lse = lse,
                                    .batch = batch,
                                    .sequence_length = shape.sequence_length,
                                    .num_heads = shape.num_heads,
                                    .num_kv_heads = shape.num_kv_heads,
                                    .head_dim = shape.head_dim,
                                    .scale = scale,
                                    .mask = shape.mask},
                                   tape.stream());
  const int slot = qkv.slot;
  qkv.value = Tensor();
  return tape.record(Op::kAttention, out, {qkv}, {}, [=](Tape& t, Tensor d_out) {
    Tensor d_qkv = t.allocate(dtype, packed_input.shape(), "gradient");
    t.backend().attention_backward({.qkv = packed_input,
                                    .out = out,
                                    .lse = lse,
                                    .d_out = d_out,
                                    .d_qkv = d_qkv,
                                    .batch = batch,
                                    .sequence_length = shape.sequence_length,
                                    .num_heads = shape.num_heads,
                                    .num_kv_heads = shape.num_kv_heads,
                                    .head_dim = shape.head_dim,
                                    .scale = scale,
                                    .mask = shape.mask},
                                   t.stream());
    t.give_gradient(Var{{}, slot}, std::move(d_qkv));
  });
}

}  // namespace mantissa
