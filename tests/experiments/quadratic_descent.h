// SGD on f(w) = 1/2 sum lambda (w - w*)^2 with weights stored in a format: w <- round(w - lr (lambda (w - w*) +
// noise)), with normal noise of standard deviation sigma. Each coordinate is a separate descent.
#pragma once

#include <cstdint>

#include "core/kernels/optimizer/args.h"
#include "core/tensor/philox.h"
#include "tests/experiments/weight_rounding.h"

namespace mantissa::testing {

struct Descent {
  Format format = Format::kBF16;
  WeightRounding rounding = WeightRounding::kNearest;
  double lambda = 1;
  double lr = 0.1;
  double sigma = 0;
  double start = 1;
  double target = 1.5;  // w*
  uint32_t coordinate = 0;
};

// Calls visit(step, w - w*) for the steps 0 (the start, rounded to nearest) to steps - 1.
template <typename F>
void descend(const Descent& descent, int steps, const F& visit) {
  float w = quantize(descent.format, static_cast<float>(descent.start), Saturation::kYes);
  for (int step = 0; step < steps; ++step) {
    const double e = w - descent.target;
    visit(step, e);
    const PhiloxCounter words = philox(2024, {static_cast<uint32_t>(step), descent.coordinate, 0, 0});
    const double noise = descent.sigma == 0 ? 0 : descent.sigma * normal_pair(words[0], words[1])[0];
    const auto exact = static_cast<float>(w - descent.lr * (descent.lambda * e + noise));
    w = round_weight(descent.format, descent.rounding, exact, words[2]);
  }
}

// E[p (1 - p)] for the fraction p of s / delta, with s normal of standard deviation tau delta. This is the variance, in
// delta^2, of stochastically rounding a value s away from a number of the format: 1/6 for large tau, tau sqrt(2 / pi)
// for small. From the Fourier series of p (1 - p) = 1/6 - sum over k of cos(2 pi k p) / (pi k)^2.
double stochastic_variance(double tau);

// E[(w - w*)^2] in the stationary state: V = (lr^2 sigma^2 + delta^2 v) / (lr lambda (2 - lr lambda)). Stochastic
// rounding has v = stochastic_variance(tau) with steps of standard deviation tau delta = lr sqrt(sigma^2 + lambda^2 V);
// solved for V. Rounding to nearest has v = 1/12, assuming noise that spreads a step over more than delta.
double stationary_variance(const Descent& descent);

}  // namespace mantissa::testing
