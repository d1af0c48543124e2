#include "core/ops/gelu.h"

namespace mantissa {

Var gelu(Tape& tape, Var x, GeluForm form) {
  const DType dtype = tape.compute_dtype(Op::kGelu, x.value.dtype(), x.value.dtype());
  const Tensor input = tape.cast(x.value, dtype);
  Tensor y = tape.allocate(dtype, input.shape());
  tape.backend().gelu_forward({.x = input, .y = y, .form = form}, tape.stream());
  const int slot = x.slot;
  x.value = Tensor();
  return tape.record(Op::kGelu, y, {x}, {}, [slot, input, form](Tape& t, Tensor dy) {
    Tensor dx = dy.unique() ? dy : t.allocate(input.dtype(), input.shape(), "gradient");
    t.backend().gelu_backward({.x = input, .dy = dy, .dx = dx, .form = form}, t.stream());
    t.give_gradient(Var{{}, slot}, std::move(dx));
  });
}

}  // namespace mantissa
