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
  tape.backend().run(AddArgs{.a = sum.a.value, .b = sum.b.value, .y = y}, tape.stream());
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

}  // namespace mantissa
