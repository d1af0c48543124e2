// Ops with one-line derivatives, to test the tape without the arithmetic of real ops.
#pragma once

#include <numeric>
#include <vector>

#include "core/autograd/tape.h"
#include "core/kernels/elementwise/args.h"

namespace mantissa::testing {

// The parameter itself as a value.
inline Var leaf(Tape& tape, Parameter& parameter) {
  Tensor y = tape.allocate(parameter.weight.dtype(), parameter.shape);
  tape.backend().copy(parameter.weight, y, tape.stream());
  return tape.record(Op::kEmbedding, y, {}, {&parameter}, [&parameter](Tape& t, Tensor dy) {
    const GradientTarget target = t.gradient_target(parameter);
    if (target.mode == GradientMode::kWrite) {
      t.backend().run(CastArgs{.src = dy, .dst = target.tensor}, t.stream());
    } else {
      t.backend().run(AddArgs{.a = target.tensor, .b = dy, .y = target.tensor}, t.stream());
    }
  });
}

// factor * x. Keeps x until its backward has run, as an activation.
inline Var scaled(Tape& tape, const Var& x, float factor) {
  Tensor y = tape.allocate(x.value.dtype(), x.value.shape());
  tape.backend().run(CastArgs{.src = x.value, .dst = y, .scale = factor}, tape.stream());
  return tape.record(Op::kGelu, y, {x}, {}, [x, factor](Tape& t, Tensor dy) {
    Tensor dx = t.allocate(dy.dtype(), dy.shape(), "gradient");
    t.backend().run(CastArgs{.src = dy, .dst = dx, .scale = factor}, t.stream());
    t.give_gradient(x, std::move(dx));
  });
}

// The sum of weights[i] * x[i] in fp32: a loss whose gradient is `weights` times the gradient of the loss.
inline Var weighted_sum(Tape& tape, const Var& x, std::vector<float> weights) {
  const Tensor wide = tape.cast(x.value, DType::kF32);
  std::vector<float> values(weights.size());
  tape.backend().download(wide, values.data(), tape.stream());
  const float sum = std::inner_product(values.begin(), values.end(), weights.begin(), 0.0f);
  Tensor y = tape.allocate(DType::kF32, {1});
  tape.backend().upload(&sum, y, tape.stream());
  const Var source{{}, x.slot};
  const Shape shape = x.value.shape();
  return tape.record(Op::kCrossEntropy, y, {source}, {}, [source, shape, weights](Tape& t, Tensor d_loss) {
    std::vector<float> gradient = weights;
    float factor = 0.0f;
    t.backend().download(d_loss, &factor, t.stream());
    for (float& value : gradient) value *= factor;
    Tensor dx = t.allocate(DType::kF32, shape, "gradient");
    t.backend().upload(gradient.data(), dx, t.stream());
    t.give_gradient(source, std::move(dx));
  });
}

}  // namespace mantissa::testing
