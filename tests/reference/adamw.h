// Scalar reference of an AdamW update of one element, in double.
#pragma once

#include <cmath>

namespace mantissa::reference {

struct AdamWState {
  double w, m, v;
};

struct AdamWStep {
  double beta1, beta2, epsilon, weight_decay;
  double gradient_multiplier, learning_rate, bias_correction1, bias_correction2;
};

inline AdamWState adamw(AdamWState state, double gradient, const AdamWStep& step) {
  const double g = gradient * step.gradient_multiplier;
  state.m = step.beta1 * state.m + (1.0 - step.beta1) * g;
  state.v = step.beta2 * state.v + (1.0 - step.beta2) * g * g;
  state.w -= step.learning_rate * step.weight_decay * state.w;
  const double corrected_m = state.m / step.bias_correction1, corrected_v = state.v / step.bias_correction2;
  state.w -= step.learning_rate * corrected_m / (std::sqrt(corrected_v) + step.epsilon);
  return state;
}

}  // namespace mantissa::reference
