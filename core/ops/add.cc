#include "core/ops/add.h"

namespace mantissa {

Var add(Tape& tape, const Var& a, const Var& b) {
  MANTISSA_CHECK(a.value.shape() == b.value.shape(), "[add] shapes must be equal, got {} and {}", a.value.shape(),
                 b.value.shape());
  const DType dtype = tape.compute_dtype(Op::kAdd, a.value.dtype(), widest(a.value.dtype(), b.value.dtype()));
  Tensor y = tape.allocate(dtype, a.value.shape());
  tape.backend().add({.a = a.value, .b = b.value, .y = y}, tape.stream());
  const Var left{{}, a.slot}, right{{}, b.slot};
  return tape.record(Op::kAdd, y, {left, right}, {}, [left, right](Tape& t, Tensor dy) {
    t.give_gradient(right, dy);
    t.give_gradient(left, std::move(dy));
  });
}

}  // namespace mantissa
