// Complex-step checks of attention and of the linear layer.
#include "tests/reference/attention.h"

#include "tests/reference/gradient_check.h"
#include "tests/reference/linear.h"
#include "tests/reference/random_values.h"

namespace mantissa::reference {
namespace {

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
  for (size_t t = 0; t < c.length; ++t) qkv[c.value(0, 0, t)] = 1.0;  // constant values come out as they are
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

}  // namespace
}  // namespace mantissa::reference
