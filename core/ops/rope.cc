#include "core/ops/rope.h"

#include "core/kernels/embedding/args.h"

namespace mantissa {

Var rope(Tape& tape, Var qkv, const AttentionShape& shape, float base) {
  MANTISSA_CHECK(shape.head_dim % 2 == 0, "[rope] head_dim must be even, got {}", shape.head_dim);
  const DType dtype = tape.compute_dtype(Op::kRope, qkv.value.dtype(), qkv.value.dtype());
  const Var input{{}, qkv.slot};
  Tensor x = tape.cast(qkv.value, dtype);
  qkv.value = Tensor();
  RopeArgs args{.x = x,
                .y = x,
                .sequence_length = shape.sequence_length,
                .row_heads = shape.num_heads + 2 * shape.num_kv_heads,
                .rotated_heads = shape.num_heads + shape.num_kv_heads,
                .head_dim = shape.head_dim,
                .base = base};
  const auto in_place_or_copy = [](Tape& t, RopeArgs& rope_args, Tensor& tensor) {
    rope_args.x = rope_args.y = Tensor();
    const Tensor y = tensor.unique() ? tensor : t.allocate(tensor.dtype(), tensor.shape());
    rope_args.x = tensor;
    rope_args.y = y;
    t.backend().run(rope_args, t.stream());
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
