#include "core/ops/add.h"

#include "core/kernels/elementwise/args.h"

namespace mantissa {
namespace {

DType sum_dtype(const Tape& tape, const Var& a, const Var& b) {
  MANTISSA_CHECK(a.value.shape() == b.value.shape(), "[add] shapes must be equal, got {} and {}", a.value.shape(),
                 b.value.shape());
  return tape.compute_dtype(Op::kAdd, a.value.dtype(), widest(a.value.dtype(), b.value.dtype()));
}

}  // namespace

Var add(Tape& tape, const Var& a, const Var& b) { return add(tape, {a, b, sum_dtype(tape, a, b)}); }

Var add(Tape& tape, const DeferredSum& sum) {
  if (!sum.is_deferred()) return sum.a;
  const Tensor y = tape.allocate(sum.dtype, sum.a.value.shape());
  tape.run(AddArgs{.a = sum.a.value, .b = sum.b.value, .y = y});
  return record_sum(tape, sum, y);
}

DeferredSum defer_add(Tape& tape, Var a, Var b) {
  const DType dtype = sum_dtype(tape, a, b);
  // GPU norm kernels are slow for a sum whose dtype differs from both addends'.
  const bool is_third = dtype != a.value.dtype() && dtype != b.value.dtype();
  if (is_third || tape.shows_every_op()) return {.a = add(tape, a, b)};
  return {std::move(a), std::move(b), dtype};
}

Var record_sum(Tape& tape, const DeferredSum& sum, Tensor value) {
  const Var left{{}, sum.a.slot}, right{{}, sum.b.slot};
  return tape.record(Op::kAdd, std::move(value), {left, right}, {}, [left, right](Tape& t, Tensor dy) {
    t.give_gradient(right, dy);
    t.give_gradient(left, std::move(dy));
  });
}

Var dropout(Tape& tape, Var x, float probability, int64_t samples) {
  MANTISSA_CHECK(probability >= 0.0f && probability < 1.0f, "[dropout] probability must be in [0, 1), got {}",
                 probability);
  MANTISSA_CHECK(samples > 0 && x.value.numel() % samples == 0, "[dropout] {} elements do not divide into {} samples",
                 x.value.numel(), samples);
  if (probability == 0.0f || !tape.training()) return x;
  MANTISSA_CHECK(tape.options().random.step.defined(), "[dropout] the tape was made without a step number");
  const DType dtype = tape.compute_dtype(Op::kDropout, x.value.dtype(), x.value.dtype());
  const Tensor input = tape.cast(x.value, dtype);
  Tensor y = tape.allocate(dtype, input.shape());
  const RandomKey& key = tape.options().random;
  DropoutArgs args{.x = input,
                   .y = y,
                   .probability = probability,
                   .seed = key.seed,
                   .step = key.step,
                   .site = tape.next_random_site(),
                   .first_sample = key.first_sample,
                   .elements_per_sample = input.numel() / samples};
  tape.run(args);
  args.x = args.y = Tensor();
  const Var source{{}, x.slot};
  return tape.record(Op::kDropout, y, {source}, {}, [source, args](Tape& t, Tensor dy) {
    DropoutArgs backward = args;
    Tensor dx = dy.unique() ? dy : t.allocate(dy.dtype(), dy.shape(), "gradient");
    backward.x = dy;
    backward.y = dx;
    t.run(backward);
    backward.x = backward.y = dy = Tensor();
    t.give_gradient(source, std::move(dx));
  });
}

}  // namespace mantissa
