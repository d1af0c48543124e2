#include "core/ops/gelu.h"

#include "core/kernels/activation/args.h"

namespace mantissa {

Tensor gelu_of(Tape& tape, const Tensor& x, GeluForm form) {
  Tensor y = tape.allocate(x.dtype(), x.shape());
  tape.backend().run(GeluForwardArgs{.x = x, .y = y, .form = form}, tape.stream());
  return y;
}

Var gelu(Tape& tape, Var x, GeluForm form) {
  const DType dtype = tape.compute_dtype(Op::kGelu, x.value.dtype(), x.value.dtype());
  const Tensor input = tape.cast(x.value, dtype);
  Tensor y = gelu_of(tape, input, form);
  const int slot = x.slot;
  x.value = Tensor();
  Var made = tape.record(Op::kGelu, y, {x}, {}, [slot, input, form](Tape& t, Tensor dy) {
    Tensor dx = dy.unique() ? dy : t.allocate(input.dtype(), input.shape(), "gradient");
    t.backend().run(GeluBackwardArgs{.x = input, .dy = dy, .dx = dx, .form = form}, t.stream());
    t.give_gradient(Var{{}, slot}, std::move(dx));
  });
  return tape.remakeable(std::move(made), [input, form](Tape& t) { return gelu_of(t, input, form); });
}

}  // namespace mantissa
