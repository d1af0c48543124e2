// Gradients of the kernel references against finite differences or complex steps.
#include <cmath>

#include "tests/reference/attention.h"
#include "tests/reference/bias.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/dropout.h"
#include "tests/reference/embedding.h"
#include "tests/reference/gelu.h"
#include "tests/reference/gradient_check.h"
#include "tests/reference/linear.h"
#include "tests/reference/norm.h"
#include "tests/reference/random_values.h"
#include "tests/reference/relu_squared.h"
#include "tests/reference/rope.h"
#include "tests/reference/swiglu.h"

namespace mantissa::reference {
namespace {

// ---- Complex-step checks of GELU, SwiGLU, rotary embedding and dropout.

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

// ---- Complex-step checks of attention and of the linear layer.

TEST(AttentionReference, Gradient) {
  for (const bool causal : {true, false}) {
    const AttentionCase c{2, 5, 4, 2, 3, 0.7, causal};
    const std::vector<double> qkv = random_values(static_cast<int64_t>(c.qkv_size()), 1, -2.0, 2.0);
    const std::vector<double> d_out = random_values(static_cast<int64_t>(c.out_size()), 2);
    expect_gradient(
        qkv, [&](const std::vector<Complex>& v) { return project(attention_forward(c, v).out, d_out); },
        attention_backward(c, qkv, attention_forward(c, qkv), d_out), causal ? "causal" : "unmasked");
  }
}

TEST(AttentionReference, ProbabilitiesSumToOneAndCausalQueriesSeeNoLaterKey) {
  const AttentionCase c{1, 4, 1, 1, 2, 1.0, true};
  std::vector<double> qkv = random_values(static_cast<int64_t>(c.qkv_size()), 3);
  for (size_t t = 0; t < c.length; ++t) qkv[c.value(0, 0, t)] = 1.0;  // with constant values, out equals them
  const AttentionResult<double> before = attention_forward(c, qkv);
  for (size_t t = 0; t < c.length; ++t) EXPECT_NEAR(before.out[c.out(0, 0, t)], 1.0, 1e-15);
  qkv[c.key(0, 0, 3)] += 1.0;
  qkv[c.value(0, 0, 3) + 1] += 1.0;
  const AttentionResult<double> after = attention_forward(c, qkv);
  for (size_t i = 0; i < c.out(0, 0, 3); ++i) EXPECT_EQ(before.out[i], after.out[i]);
  EXPECT_NE(before.out[c.out(0, 0, 3) + 1], after.out[c.out(0, 0, 3) + 1]);
}

TEST(LinearReference, Gradients) {
  constexpr size_t kRows = 5, kOutputs = 4, kInputs = 3;
  const std::vector<double> x = random_values(kRows * kInputs, 1), weight = random_values(kOutputs * kInputs, 2);
  const std::vector<double> bias = random_values(kOutputs, 3), dy = random_values(kRows * kOutputs, 4);
  const LinearGradients<double> gradients = linear_backward(x, weight, dy, kRows);
  expect_gradient(
      x, [&](const auto& v) { return project(linear_forward(v, to_complex(weight), to_complex(bias), kRows), dy); },
      gradients.dx, "dx");
  expect_gradient(
      weight, [&](const auto& v) { return project(linear_forward(to_complex(x), v, to_complex(bias), kRows), dy); },
      gradients.d_weight, "d_weight");
  expect_gradient(
      bias, [&](const auto& v) { return project(linear_forward(to_complex(x), to_complex(weight), v, kRows), dy); },
      gradients.d_bias, "d_bias");
}

TEST(LinearReference, TransposedOperandsGiveTheSameProduct) {
  const std::vector<double> a{1, 2, 3, 4, 5, 6}, a_transposed{1, 4, 2, 5, 3, 6};        // (2, 3)
  const std::vector<double> b{7, 8, 9, 10, 11, 12}, b_transposed{7, 9, 11, 8, 10, 12};  // (3, 2)
  const std::vector<double> expected{58, 64, 139, 154};
  EXPECT_EQ(matmul(a, b, {2, 2, 3}), expected);
  EXPECT_EQ(matmul(a_transposed, b, {2, 2, 3, true, false}), expected);
  EXPECT_EQ(matmul(a, b_transposed, {2, 2, 3, false, true}), expected);
  EXPECT_EQ(matmul(a_transposed, b_transposed, {2, 2, 3, true, true}), expected);
}

// ---- Complex-step checks of cross-entropy, embedding, addition and bias.

TEST(CrossEntropyReference, Gradient) {
  constexpr int32_t kIgnore = -100;
  for (const int32_t columns : {2, 3, 17, 65}) {
    const std::vector<double> logits = random_values(5 * columns, 1, -6.0, 6.0);
    std::vector<int32_t> targets = random_integers(5, 2, columns);
    targets[3] = kIgnore;
    const double scale = 0.25;
    const auto loss = [&](const std::vector<Complex>& v) {
      Complex sum = 0;
      for (const Complex value : cross_entropy_forward(v, targets, kIgnore)) sum += value;
      return scale * sum;
    };
    expect_gradient(logits, loss, cross_entropy_backward(logits, targets, kIgnore, scale), "logits");
  }
}

TEST(EmbeddingReference, Gradients) {
  constexpr size_t kVocabulary = 7, kPositions = 6, kSequence = 4, kColumns = 3;
  const std::vector<int32_t> tokens = {0, 3, 3, 6, 3, 0, 1, 1};
  const std::vector<double> token_table = random_values(kVocabulary * kColumns, 1);
  const std::vector<double> position_table = random_values(kPositions * kColumns, 2);
  const std::vector<double> dy = random_values(static_cast<int64_t>(tokens.size() * kColumns), 3);
  const auto gradients = embedding_backward(tokens, dy, kVocabulary, kPositions, kSequence, kColumns);
  const auto forward = [&](const std::vector<Complex>& token, const std::vector<Complex>& position) {
    return project(embedding_forward(tokens, token, position, kSequence, kColumns), dy);
  };
  expect_gradient(
      token_table, [&](const auto& v) { return forward(v, to_complex(position_table)); }, gradients.d_token_table,
      "d_token_table");
  expect_gradient(
      position_table, [&](const auto& v) { return forward(to_complex(token_table), v); }, gradients.d_position_table,
      "d_position_table");
}

TEST(AddReference, GradientPassesThrough) {
  const std::vector<double> a = random_values(33, 1), b = random_values(33, 2), dy = random_values(33, 3);
  expect_gradient(
      a, [&](const auto& v) { return project(add(v, to_complex(b)), dy); }, dy, "da");
  expect_gradient(
      b, [&](const auto& v) { return project(add(to_complex(a), v), dy); }, dy, "db");
}

TEST(BiasReference, GradientIsTheColumnSum) {
  const std::vector<double> x = random_values(5 * 17, 1), bias = random_values(17, 2), dy = random_values(5 * 17, 3);
  expect_gradient(
      bias, [&](const auto& v) { return project(add_bias(to_complex(x), v), dy); }, column_sum(dy, 17), "d_bias");
  expect_gradient(
      x, [&](const auto& v) { return project(add_bias(v, to_complex(bias)), dy); }, dy, "dx");
}

// ---- Complex-step checks of the norms' hand-derived gradients.

class NormReference : public testing::TestWithParam<std::tuple<Norm, int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Columns, NormReference,
                         testing::Combine(testing::Values(Norm::kLayer, Norm::kRms), testing::Values(2, 3, 17, 65)));

TEST_P(NormReference, Gradients) {
  const auto [norm, columns] = GetParam();
  const NormFormula formula{norm, 1e-5};
  const std::vector<double> x = random_values(3 * columns, 1, -2.0, 3.0), weight = random_values(columns, 2, 0.5, 1.5),
                            bias = random_values(columns, 3), dy = random_values(3 * columns, 4);
  const auto gradients = norm_backward(formula, x, dy, weight);
  const auto y_of = [&formula = formula, &dy](const auto& its_x, const auto& its_weight, const auto& its_bias) {
    return project(norm_forward(formula, its_x, its_weight, its_bias).y, dy);
  };
  const auto a = to_complex(x), w = to_complex(weight), b = to_complex(bias);
  expect_gradient(
      x, [&](const auto& v) { return y_of(v, w, b); }, gradients.dx, "dx");
  expect_gradient(
      weight, [&](const auto& v) { return y_of(a, v, b); }, gradients.d_weight, "d_weight");
  expect_gradient(
      bias, [&](const auto& v) { return y_of(a, w, v); }, gradients.d_bias, "d_bias");
}

}  // namespace
}  // namespace mantissa::reference
