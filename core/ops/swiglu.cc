#include "core/ops/swiglu.h"

namespace mantissa {

Var swiglu(Tape& tape, Var x) {
  MANTISSA_CHECK(x.value.shape().rank() == 2 && x.value.dim(1) % 2 == 0, "[swiglu] x must be (R, 2*F), got {}",
                 x.value.shape());
  const DType dtype = tape.compute_dtype(Op::kSwiglu, x.value.dtype(), x.value.dtype());
  const Tensor input = tape.cast(x.value, dtype);
  Tensor y = tape.allocate(dtype, {input.dim(0), input.dim(1) / 2});
  tape.backend().swiglu_forward({.x = input, .y = y}, tape.stream());
  const int slot = x.slot;
  x.value = Tensor();
  return tape.record(Op::kSwiglu, y, {x}, {}, [slot, input](Tape& t, Tensor dy) {
    Tensor dx = t.allocate(input.dtype(), input.shape(), "gradient");
    t.backend().swiglu_backward({.x = input, .dy = dy, .dx = dx}, t.stream());
    t.give_gradient(Var{{}, slot}, std::move(dx));
  });
}

}  // namespace mantissa
