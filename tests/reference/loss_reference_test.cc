// Complex-step checks of cross-entropy, embedding, addition and bias.
#include "tests/reference/bias.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/embedding.h"
#include "tests/reference/gradient_check.h"
#include "tests/reference/random_values.h"

namespace mantissa::reference {
namespace {

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

}  // namespace
}  // namespace mantissa::reference
