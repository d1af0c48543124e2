#include "core/ops/activation.h"

namespace mantissa {
namespace {

// x (R, 2*F): gate, then up. Returns (R, F).
Tensor swiglu_of(Tape& tape, const Tensor& x) {
  Tensor y = tape.allocate(x.dtype(), {x.dim(0), x.dim(1) / 2});
  tape.backend().run(SwigluForwardArgs{.x = x, .y = y}, tape.stream());
  return y;
}

Tensor relu_squared_of(Tape& tape, const Tensor& x) {
  Tensor y = tape.allocate(x.dtype(), x.shape());
  tape.backend().run(ReluSquaredForwardArgs{.x = x, .y = y}, tape.stream());
  return y;
}

}  // namespace

std::optional<GeluForm> gelu_form(Activation activation) {
  if (activation == Activation::kGeluTanh) return GeluForm::kTanh;
  if (activation == Activation::kGeluErf) return GeluForm::kErf;
  return std::nullopt;
}

Var activate(Tape& tape, Var x, Activation activation) {
  if (const auto form = gelu_form(activation)) return gelu(tape, std::move(x), *form);
  return activation == Activation::kSwiglu ? swiglu(tape, std::move(x)) : relu_squared(tape, std::move(x));
}

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

Var relu_squared(Tape& tape, Var x) {
  const DType dtype = tape.compute_dtype(Op::kReluSquared, x.value.dtype(), x.value.dtype());
  const Tensor input = tape.cast(x.value, dtype);
  Tensor y = relu_squared_of(tape, input);
  const int slot = x.slot;
  x.value = Tensor();
  Var made = tape.record(Op::kReluSquared, std::move(y), {x}, {}, [slot, input](Tape& t, Tensor dy) {
    Tensor dx = dy.unique() ? dy : t.allocate(input.dtype(), input.shape(), "gradient");
    t.backend().run(ReluSquaredBackwardArgs{.x = input, .dy = dy, .dx = dx}, t.stream());
    t.give_gradient(Var{{}, slot}, std::move(dx));
  });
  return tape.remakeable(std::move(made), [input](Tape& t) { return relu_squared_of(t, input); });
}

}  // namespace mantissa
