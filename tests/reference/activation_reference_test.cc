// Complex-step checks of GELU, SwiGLU, rotary embedding and dropout.
#include <cmath>

#include "tests/reference/dropout.h"
#include "tests/reference/gelu.h"
#include "tests/reference/gradient_check.h"
#include "tests/reference/random_values.h"
#include "tests/reference/relu_squared.h"
#include "tests/reference/rope.h"
#include "tests/reference/swiglu.h"

namespace mantissa::reference {
namespace {

TEST(GeluReference, ComplexErfAgreesWithTheStandardOneOnTheRealAxis) {
  for (double x = -6.0; x <= 6.0; x += 0.0625) {
    const Complex value = erf(Complex(x));
    EXPECT_NEAR(value.real(), std::erf(x), 1e-14) << x;
    EXPECT_EQ(value.imag(), 0.0) << x;
  }
}

TEST(GeluReference, Derivative) {
  for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
    const std::vector<double> x = random_values(301, 1, -6.0, 6.0), dy = random_values(301, 2);
    std::vector<double> dx(x.size());
    for (size_t i = 0; i < x.size(); ++i) dx[i] = dy[i] * gelu_derivative(x[i], form);
    const auto loss = [&](const std::vector<Complex>& v) {
      std::vector<Complex> y(v.size());
      for (size_t i = 0; i < v.size(); ++i) y[i] = gelu(v[i], form);
      return project(y, dy);
    };
    expect_gradient(x, loss, dx, form == GeluForm::kTanh ? "tanh" : "erf");
  }
}

TEST(SwigluReference, Gradient) {
  for (const size_t features : {1u, 3u, 17u}) {
    const int64_t n = static_cast<int64_t>(3 * features);
    const std::vector<double> x = random_values(2 * n, 1, -4.0, 4.0), dy = random_values(n, 2);
    expect_gradient(
        x, [&](const auto& v) { return project(swiglu_forward(v, features), dy); }, swiglu_backward(x, dy, features),
        "dx");
  }
}

TEST(RopeReference, Gradient) {
  const RopeShape shape{5, 3, 2, 6, 10000.0};
  const std::vector<double> x = random_values(10 * 18, 1), dy = random_values(10 * 18, 2);
  expect_gradient(
      x, [&](const auto& v) { return project(rope_forward(v, shape), dy); }, rope_backward(dy, shape), "dx");
}

TEST(RopeReference, KeepsLengthsAndDependsOnDistanceOnly) {
  const RopeShape shape{8, 1, 1, 4, 100.0};
  const std::vector<double> q = random_values(4, 1), k = random_values(4, 2);
  std::vector<double> queries, keys;
  for (int position = 0; position < 8; ++position) {
    queries.insert(queries.end(), q.begin(), q.end());
    keys.insert(keys.end(), k.begin(), k.end());
  }
  queries = rope_forward(queries, shape);
  keys = rope_forward(keys, shape);
  const auto dot = [&](size_t i, size_t j) {
    double sum = 0.0;
    for (size_t c = 0; c < 4; ++c) sum += queries[i * 4 + c] * keys[j * 4 + c];
    return sum;
  };
  for (size_t i = 0; i + 3 < 8; ++i) EXPECT_NEAR(dot(i + 3, i), dot(3, 0), 1e-14);
  EXPECT_GT(std::abs(dot(3, 0) - dot(0, 0)), 1e-3);
}

TEST(ReluSquaredReference, Gradient) {
  const std::vector<double> x = random_values(40, 1, -3.0, 3.0), dy = random_values(40, 2);
  expect_gradient(
      x, [&](const auto& v) { return project(relu_squared_forward(v), dy); }, relu_squared_backward(x, dy), "dx");
}

TEST(DropoutReference, Gradient) {
  const DropoutKey key{0.3, 42, 7, 3, 5, 33};
  const std::vector<double> x = random_values(99, 1), dy = random_values(99, 2);
  expect_gradient(
      x, [&](const auto& v) { return project(dropout_forward(v, key), dy); }, dropout_backward(dy, key), "dx");
}

}  // namespace
}  // namespace mantissa::reference
