#include "core/cpu/embedding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/cpu/kernel_check.h"
#include "tests/core/cpu/test_tensor.h"
#include "tests/reference/embedding.h"
#include "tests/reference/random_values.h"

namespace mantissa::cpu {
namespace {

using reference::random_integers;
using reference::random_values;

constexpr int64_t kVocabulary = 11, kPositions = 9, kSequence = 7, kBatch = 3;

Tensor random_tensor(DType dtype, Shape shape, uint64_t seed) {
  return make_tensor(dtype, shape, random_values(shape.numel(), seed));
}

TEST(Embedding, ForwardAgreesWithTheReferenceForAllDTypes) {
  const std::vector<int32_t> tokens = random_integers(kBatch * kSequence, 1, kVocabulary);
  on_each_target([&] {
    for (const DType table_dtype : kFloatDTypes) {
      for (const DType y_dtype : kFloatDTypes) {
        for (const int64_t columns : {1, 3, 17, 65, 129}) {
          for (const bool positions : {true, false}) {
            const Tensor token_table = random_tensor(table_dtype, {kVocabulary, columns}, 2);
            const Tensor position_table = positions ? random_tensor(table_dtype, {kPositions, columns}, 3) : Tensor();
            const Tensor y = make_unwritten(y_dtype, {kBatch * kSequence, columns});
            embedding_forward({.tokens = make_indices(tokens),
                               .token_table = token_table,
                               .position_table = position_table,
                               .y = y,
                               .sequence_length = kSequence});
            const std::vector<double> position_values = positions ? values_of(position_table) : std::vector<double>();
            const std::vector<double> expected = reference::embedding_forward(
                tokens, values_of(token_table), position_values, kSequence, static_cast<size_t>(columns));
            expect_close(y, expected, absolute(expected), kEmbeddingTolerance.steps(), "y");
          }
        }
      }
    }
  });
}

void check_backward(DType dtype, int64_t columns, GradientMode mode, bool positions) {
  const std::vector<int32_t> tokens = random_integers(kBatch * kSequence, 1, kVocabulary);
  const bool accumulate = mode == GradientMode::kAccumulate;
  const auto gradient = [&](Shape shape, uint64_t seed) {
    return accumulate ? random_tensor(DType::kF32, shape, seed) : make_unwritten(DType::kF32, shape);
  };
  const Tensor dy = random_tensor(dtype, {kBatch * kSequence, columns}, 4);
  const Tensor d_token = gradient({kVocabulary, columns}, 5);
  const Tensor d_position = positions ? gradient({kPositions, columns}, 6) : Tensor();
  const std::vector<double> token_before = values_of(d_token);
  const std::vector<double> position_before = positions ? values_of(d_position) : std::vector<double>();
  embedding_backward({.tokens = make_indices(tokens),
                      .dy = dy,
                      .d_token_table = d_token,
                      .d_position_table = d_position,
                      .sequence_length = kSequence,
                      .token_mode = mode,
                      .position_mode = mode});
  const auto reference_of = [&](const std::vector<double>& d) {
    return reference::embedding_backward(tokens, d, kVocabulary, positions ? kPositions : 0, kSequence,
                                         static_cast<size_t>(columns));
  };
  auto expected = reference_of(values_of(dy));
  auto magnitude = reference_of(absolute(values_of(dy)));
  if (accumulate) {
    expected.d_token_table = sum_of(expected.d_token_table, token_before);
    magnitude.d_token_table = sum_of(magnitude.d_token_table, absolute(token_before));
    if (positions) expected.d_position_table = sum_of(expected.d_position_table, position_before);
    if (positions) magnitude.d_position_table = sum_of(magnitude.d_position_table, absolute(position_before));
  }
  const double steps = kEmbeddingGradientTolerance.steps(kBatch * kSequence);
  expect_close(d_token, expected.d_token_table, magnitude.d_token_table, steps, "d_token_table");
  if (positions)
    expect_close(d_position, expected.d_position_table, magnitude.d_position_table, steps, "d_position_table");
}

TEST(Embedding, BackwardAgreesWithTheReference) {
  on_each_target([] {
    for (const DType dtype : kFloatDTypes) {
      for (const int64_t columns : {1, 3, 17, 65, 129}) {
        for (const GradientMode mode : {GradientMode::kWrite, GradientMode::kAccumulate}) {
          check_backward(dtype, columns, mode, true);
          check_backward(dtype, columns, mode, false);
        }
      }
    }
  });
}

TEST(Embedding, ThreadInvariant) {
  const std::vector<int32_t> tokens = random_integers(140, 1, kVocabulary);
  for (const DType dtype : kFloatDTypes) {
    expect_same_for_any_thread_count([&] {
      const Tensor y = make_unwritten(dtype, {140, 321});
      const Tensor d_token = make_unwritten(DType::kF32, {kVocabulary, 321}),
                   d_position = make_unwritten(DType::kF32, {kPositions, 321});
      embedding_forward({.tokens = make_indices(tokens),
                         .token_table = random_tensor(dtype, {kVocabulary, 321}, 2),
                         .position_table = random_tensor(dtype, {kPositions, 321}, 3),
                         .y = y,
                         .sequence_length = kSequence});
      embedding_backward({.tokens = make_indices(tokens),
                          .dy = random_tensor(dtype, {140, 321}, 4),
                          .d_token_table = d_token,
                          .d_position_table = d_position,
                          .sequence_length = kSequence});
      return std::vector<Tensor>{y, d_token, d_position};
    });
  }
}

TEST(Embedding, RefusesATokenOutsideOfTheTable) {
  const Tensor table = random_tensor(DType::kF32, {4, 3}, 1), y = make_unwritten(DType::kF32, {2, 3});
  const auto call = [&](std::vector<int32_t> tokens) {
    return [=] { embedding_forward({.tokens = make_indices(tokens), .token_table = table, .y = y}); };
  };
  expect_contract_error(call({0, 4}), "[embedding] tokens must be in [0, 4), got 4 at index 1");
  expect_contract_error(call({-1, 0}), "got -1 at index 0");
}

}  // namespace
}  // namespace mantissa::cpu
