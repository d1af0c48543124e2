#include "core/ops/dropout.h"

#include "core/kernels/elementwise/args.h"

namespace mantissa {

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
  tape.backend().run(args, tape.stream());
  args.x = args.y = Tensor();
  const Var source{{}, x.slot};
  return tape.record(Op::kDropout, y, {source}, {}, [source, args](Tape& t, Tensor dy) {
    DropoutArgs backward = args;
    Tensor dx = dy.unique() ? dy : t.allocate(dy.dtype(), dy.shape(), "gradient");
    backward.x = dy;
    backward.y = dx;
    t.backend().run(backward, t.stream());
    backward.x = backward.y = dy = Tensor();
    t.give_gradient(source, std::move(dx));
  });
}

}  // namespace mantissa
