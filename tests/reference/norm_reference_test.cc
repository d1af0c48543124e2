// Complex-step checks of the normalisations' hand-derived gradients.
#include "tests/reference/gradient_check.h"
#include "tests/reference/layer_norm.h"
#include "tests/reference/random_values.h"
#include "tests/reference/rms_norm.h"

namespace mantissa::reference {
namespace {

constexpr double kEpsilon = 1e-5;

struct NormCase {
  explicit NormCase(int64_t rows, int64_t columns)
      : x(random_values(rows * columns, 1, -2.0, 3.0)),
        weight(random_values(columns, 2, 0.5, 1.5)),
        bias(random_values(columns, 3)),
        dy(random_values(rows * columns, 4)) {}
  std::vector<double> x, weight, bias, dy;
};

class NormReference : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Columns, NormReference, testing::Values(2, 3, 17, 65));

TEST_P(NormReference, LayerNormGradients) {
  const NormCase c(3, GetParam());
  const auto gradients = layer_norm_backward(c.x, c.dy, c.weight, kEpsilon);
  const auto x = to_complex(c.x), weight = to_complex(c.weight), bias = to_complex(c.bias);
  expect_gradient(
      c.x, [&](const auto& v) { return project(layer_norm_forward(v, weight, bias, kEpsilon).y, c.dy); }, gradients.dx,
      "dx");
  expect_gradient(
      c.weight, [&](const auto& v) { return project(layer_norm_forward(x, v, bias, kEpsilon).y, c.dy); },
      gradients.d_weight, "d_weight");
  expect_gradient(
      c.bias, [&](const auto& v) { return project(layer_norm_forward(x, weight, v, kEpsilon).y, c.dy); },
      gradients.d_bias, "d_bias");
}

TEST_P(NormReference, RmsNormGradients) {
  const NormCase c(3, GetParam());
  const auto gradients = rms_norm_backward(c.x, c.dy, c.weight, kEpsilon);
  const auto x = to_complex(c.x), weight = to_complex(c.weight);
  expect_gradient(
      c.x, [&](const auto& v) { return project(rms_norm_forward(v, weight, kEpsilon).y, c.dy); }, gradients.dx, "dx");
  expect_gradient(
      c.weight, [&](const auto& v) { return project(rms_norm_forward(x, v, kEpsilon).y, c.dy); }, gradients.d_weight,
      "d_weight");
}

}  // namespace
}  // namespace mantissa::reference
