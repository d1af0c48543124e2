#include "core/ops/rms_norm.h"

#include "core/kernels/norm/args.h"

namespace mantissa {
namespace {

// Records the norm y of x.
Var record_norm(Tape& tape, const Var& x, const RmsNormForwardArgs& args, Parameter& weight) {
  return tape.record(Op::kRmsNorm, args.y, {x}, {&weight}, [x, rstd = args.rstd, &weight](Tape& t, Tensor dy) {
    const GradientTarget dx =
        x.slot >= 0 ? t.gradient_target(x) : GradientTarget{t.allocate(x.value.dtype(), x.value.shape(), "gradient")};
    const GradientTarget d_weight = t.gradient_target(weight);
    t.backend().run(RmsNormBackwardArgs{.x = x.value,
                                   .dy = dy,
                                   .weight = weight.weight,
                                   .rstd = rstd,
                                   .dx = dx.tensor,
                                   .d_weight = d_weight.tensor,
                                   .mode = dx.mode,
                                   .weight_mode = d_weight.mode},
                                  t.stream());
  });
}

}  // namespace

Var rms_norm(Tape& tape, Var x, Parameter& weight, float epsilon, DType out) {
  return add_rms_norm(tape, {.a = std::move(x)}, weight, epsilon, out).normed;
}

NormedSum add_rms_norm(Tape& tape, DeferredSum x, Parameter& weight, float epsilon, DType out) {
  const int64_t rows = x.a.value.dim(0), channels = x.a.value.dim(1);
  MANTISSA_CHECK(weight.shape == Shape{channels}, "[rms_norm] weight must have shape ({}), got {}", channels,
                 weight.shape);
  const RmsNormForwardArgs args{.x = x.a.value,
                                .residual = x.b.value,
                                .sum = x.is_deferred() ? tape.allocate(x.dtype, x.a.value.shape()) : Tensor(),
                                .weight = weight.weight,
                                .y = tape.allocate(out, {rows, channels}),
                                .rstd = tape.allocate(DType::kF32, {rows}),
                                .epsilon = epsilon};
  tape.backend().run(args, tape.stream());
  const Var sum = x.is_deferred() ? record_sum(tape, x, args.sum) : x.a;
  RmsNormForwardArgs again = args;  // normalizes the stored sum; rstd comes out the same
  again.x = sum.value;
  again.residual = again.sum = again.y = Tensor();
  const auto remake = [again, out](Tape& t) {
    RmsNormForwardArgs norm = again;
    norm.y = t.allocate(out, again.x.shape());
    t.backend().run(norm, t.stream());
    return norm.y;
  };
  return {sum, tape.remakeable(record_norm(tape, sum, args, weight), remake)};
}

}  // namespace mantissa
