#include "core/ops/attention.h"

#include <cmath>

namespace mantissa {

Var attention(Tape& tape, Var qkv, AttentionShape shape) {
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
  Tensor out = tape.allocate(dtype, {rows, shape.out_row()});
  const Tensor lse = tape.allocate(DType::kF32, {shape.batch, shape.num_heads, shape.sequence_length});
  shape.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  tape.backend().run(AttentionForwardArgs{.qkv = packed_input, .out = out, .lse = lse, .shape = shape}, tape.stream());
  const int slot = qkv.slot;
  qkv.value = Tensor();
  return tape.record(Op::kAttention, out, {qkv}, {}, [=](Tape& t, Tensor d_out) {
    Tensor d_qkv = t.allocate(dtype, packed_input.shape(), "gradient");
    t.backend().run(AttentionBackwardArgs{.qkv = packed_input, .out = out, .lse = lse, .d_out = d_out, .d_qkv = d_qkv, .shape = shape}, t.stream());
    t.give_gradient(Var{{}, slot}, std::move(d_qkv));
  });
}

}  // namespace mantissa
