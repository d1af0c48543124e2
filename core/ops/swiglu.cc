#include "core/ops/swiglu.h"

#include "core/kernels/activation/args.h"

namespace mantissa {
namespace {

// x (R, 2*F): gate, then up. Returns (R, F).
Tensor swiglu_of(Tape& tape, const Tensor& x) {
  Tensor y = tape.allocate(x.dtype(), {x.dim(0), x.dim(1) / 2});
  tape.backend().run(SwigluForwardArgs{.x = x, .y = y}, tape.stream());
  return y;
}

}  // namespace

Var swiglu(Tape& tape, Var x) {
  MANTISSA_CHECK(x.value.shape().rank() == 2 && x.value.dim(1) % 2 == 0, "[swiglu] x must be (R, 2*F), got {}",
                 x.value.shape());
  const DType dtype = tape.compute_dtype(Op::kSwiglu, x.value.dtype(), x.value.dtype());
  const Tensor input = tape.cast(x.value, dtype);
  Tensor y = swiglu_of(tape, input);
  const int slot = x.slot;
  x.value = Tensor();
  Var made = tape.record(Op::kSwiglu, std::move(y), {x}, {}, [slot, input](Tape& t, Tensor dy) {
    Tensor dx = t.allocate(input.dtype(), input.shape(), "gradient");
    t.backend().run(SwigluBackwardArgs{.x = input, .dy = dy, .dx = dx}, t.stream());
    t.give_gradient(Var{{}, slot}, std::move(dx));
  });
  return tape.remakeable(std::move(made), [input](Tape& t) { return swiglu_of(t, input); });
}

}  // namespace mantissa
