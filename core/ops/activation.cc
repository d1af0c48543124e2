#include "core/ops/activation.h"
#include "core/kernels/activation/args.h"

namespace mantissa {
namespace {

template <typename Forward>
constexpr bool kIsGated = std::is_same_v<Forward, SwigluForwardArgs>;

// Runs `args` on x and a new y.
template <typename Forward>
Tensor activation_of(Tape& tape, Forward args, const Tensor& x) {
  args.x = x;
  args.y = tape.allocate(x.dtype(), kIsGated<Forward> ? Shape{x.dim(0), x.dim(1) / 2} : x.shape());
  tape.run(args);
  return args.y;
}

// Records the activation of x that `forward` describes, except for its tensors; `backward` is its derivative.
template <typename Forward, typename Backward>
Var record_activation(Tape& tape, Op op, Var x, const Forward& forward, const Backward& backward) {
  const Tensor input = tape.cast(x.value, tape.compute_dtype(op, x.value.dtype(), x.value.dtype()));
  Tensor y = activation_of(tape, forward, input);
  const Var source{{}, x.slot};
  x.value = Tensor();
  Var made = tape.record(op, std::move(y), {source}, {}, [source, input, backward](Tape& t, Tensor dy) {
    const bool in_place = !kIsGated<Forward> && dy.unique();
    Tensor dx = in_place ? dy : t.allocate(input.dtype(), input.shape(), "gradient");
    Backward args = backward;
    args.x = input, args.dy = std::move(dy), args.dx = dx;
    t.run(args);
    t.give_gradient(source, std::move(dx));
  });
  return tape.remakeable(std::move(made), [input, forward](Tape& t) { return activation_of(t, forward, input); });
}

}  // namespace

std::optional<GeluForm> gelu_form(Activation activation) {
  if (activation == Activation::kGeluTanh) return GeluForm::kTanh;
  if (activation == Activation::kGeluErf) return GeluForm::kErf;
  return std::nullopt;
}

Var activate(Tape& tape, Var x, Activation activation) {
  switch (activation) {  // without a default: the compiler names a new activation
    case Activation::kGeluTanh:
    case Activation::kGeluErf:
      return gelu(tape, std::move(x), *gelu_form(activation));
    case Activation::kSwiglu:
      return swiglu(tape, std::move(x));
    case Activation::kReluSquared:
      break;
  }
  return relu_squared(tape, std::move(x));
}

Tensor gelu_of(Tape& tape, const Tensor& x, GeluForm form) {
  return activation_of(tape, GeluForwardArgs{.form = form}, x);
}

Var gelu(Tape& tape, Var x, GeluForm form) {
  return record_activation(tape, Op::kGelu, std::move(x), GeluForwardArgs{.form = form},
                           GeluBackwardArgs{.form = form});
}

Var swiglu(Tape& tape, Var x) {
  MANTISSA_CHECK(x.value.shape().rank() == 2 && x.value.dim(1) % 2 == 0, "[swiglu] x must be (R, 2*F), got {}",
                 x.value.shape());
  return record_activation(tape, Op::kSwiglu, std::move(x), SwigluForwardArgs{}, SwigluBackwardArgs{});
}

Var relu_squared(Tape& tape, Var x) {
  return record_activation(tape, Op::kReluSquared, std::move(x), ReluSquaredForwardArgs{}, ReluSquaredBackwardArgs{});
}

}  // namespace mantissa
