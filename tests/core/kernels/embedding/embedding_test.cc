#include <gtest/gtest.h>

#include "core/kernels/embedding/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/embedding.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_integers;
using reference::random_values;

constexpr int64_t kVocabulary = 11, kPositions = 9, kSequence = 7, kBatch = 3;

Tensor random_tensor(DType dtype, Shape shape, uint64_t seed) {
  return make_tensor(dtype, shape, random_values(shape.numel(), seed));
}

TEST(Embedding, ForwardAgreesWithTheReferenceForAllDTypes) {
  const std::vector<int32_t> tokens = random_integers(kBatch * kSequence, 1, kVocabulary);
  device_under_test().on_each_variant([&] {
    for (const DType table_dtype : kFloatDTypes) {
      for (const DType y_dtype : kFloatDTypes) {
        for (const int64_t columns : {1, 3, 17, 64, 65, 129}) {
          for (const bool positions : {true, false}) {
            const Tensor token_table = random_tensor(table_dtype, {kVocabulary, columns}, 2);
            const Tensor position_table = positions ? random_tensor(table_dtype, {kPositions, columns}, 3) : Tensor();
            const Tensor y = make_unwritten(y_dtype, {kBatch * kSequence, columns});
            run(EmbeddingForwardArgs{.tokens = make_indices(tokens),
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
  run(EmbeddingBackwardArgs{.tokens = make_indices(tokens),
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
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const int64_t columns : {1, 3, 17, 64, 65, 129}) {
        for (const GradientMode mode : {GradientMode::kWrite, GradientMode::kAccumulate}) {
          check_backward(dtype, columns, mode, true);
          check_backward(dtype, columns, mode, false);
        }
      }
    }
  });
}

// Documents of one token, of a whole sequence, and of lengths in between.
TEST(Embedding, PositionsCountFromTheStartOfADocument) {
  constexpr int64_t kLong = 37;
  const std::vector<int32_t> tokens = random_integers(kBatch * kLong, 1, kVocabulary);
  for (const std::vector<int32_t>& starts :
       {reference::random_starts(kBatch, kLong, 1), reference::random_starts(kBatch, kLong, 5),
        reference::random_starts(kBatch, kLong, kLong)}) {
    for (const int64_t columns : {3, 64}) {
      const Tensor token_table = random_tensor(DType::kF32, {kVocabulary, columns}, 2),
                   position_table = random_tensor(DType::kF32, {kLong, columns}, 3),
                   y = make_unwritten(DType::kF32, {kBatch * kLong, columns});
      const EmbeddingForwardArgs forward{.tokens = make_indices(tokens),
                                         .starts = make_indices(starts),
                                         .token_table = token_table,
                                         .position_table = position_table,
                                         .y = y,
                                         .sequence_length = kLong};
      run(forward);
      const std::vector<double> expected = reference::embedding_forward(
          tokens, values_of(token_table), values_of(position_table), kLong, static_cast<size_t>(columns), starts);
      expect_close(y, expected, absolute(expected), kEmbeddingTolerance.steps(), "y");

      const Tensor dy = random_tensor(DType::kBF16, y.shape(), 4),
                   d_token = make_unwritten(DType::kF32, token_table.shape()),
                   d_position = make_unwritten(DType::kF32, position_table.shape());
      run(EmbeddingBackwardArgs{.tokens = forward.tokens,
                                .starts = forward.starts,
                                .dy = dy,
                                .d_token_table = d_token,
                                .d_position_table = d_position,
                                .sequence_length = kLong});
      const auto reference_of = [&](const std::vector<double>& d) {
        return reference::embedding_backward(tokens, d, kVocabulary, kLong, kLong, static_cast<size_t>(columns), starts)
            .d_position_table;
      };
      expect_close(d_position, reference_of(values_of(dy)), reference_of(absolute(values_of(dy))),
                   kEmbeddingGradientTolerance.steps(kBatch * kLong), "d_position_table");
    }
  }
}

// Texts whose earlier tokens are elsewhere: one token of each, at any position of the table.
TEST(Embedding, DocumentsThatBeganBeforeTheirSequence) {
  const Tensor token_table = random_tensor(DType::kF32, {kVocabulary, 5}, 1),
               position_table = random_tensor(DType::kF32, {9, 5}, 2), y = make_unwritten(DType::kF32, {3, 5});
  EmbeddingForwardArgs args{.tokens = make_indices({2, 0, 1}),
                            .starts = make_indices({-8, 0, -3}),
                            .token_table = token_table,
                            .position_table = position_table,
                            .y = y,
                            .sequence_length = 1};
  run(args);
  const std::vector<double> tokens = values_of(token_table), positions = values_of(position_table);
  std::vector<double> expected;
  for (const auto& [token, position] : {std::pair{2, 8}, {0, 0}, {1, 3}}) {
    for (int c = 0; c < 5; ++c) expected.push_back(tokens[token * 5 + c] + positions[position * 5 + c]);
  }
  expect_close(y, expected, absolute(expected), kEmbeddingTolerance.steps(), "y");
  if (device_under_test().backend().device().kind != Device::Kind::kCpu) return;  // knows no values
  args.starts = make_indices({-8, 0, -9});
  expect_contract_error([&] { run(args); }, "positions must be in [0, 9), got 9");
}

TEST(Embedding, TableOfOtherDTypesForPositions) {
  const std::vector<int32_t> tokens = random_integers(kBatch * kSequence, 1, kVocabulary);
  for (const DType token_dtype : kFloatDTypes) {
    for (const DType position_dtype : kFloatDTypes) {
      const Tensor token_table = random_tensor(token_dtype, {kVocabulary, 24}, 2);
      const Tensor position_table = random_tensor(position_dtype, {kPositions, 24}, 3);
      const Tensor y = make_unwritten(DType::kF32, {kBatch * kSequence, 24});
      run(EmbeddingForwardArgs{.tokens = make_indices(tokens),
                               .token_table = token_table,
                               .position_table = position_table,
                               .y = y,
                               .sequence_length = kSequence});
      const std::vector<double> expected =
          reference::embedding_forward(tokens, values_of(token_table), values_of(position_table), kSequence, 24);
      expect_close(y, expected, absolute(expected), kEmbeddingTolerance.steps(), "y");
    }
  }
}

struct Text {
  const char* what;
  int64_t vocabulary;
  std::vector<int32_t> tokens;
};

std::vector<Text> long_texts() {
  std::vector<Text> texts;
  texts.push_back({"one token", 3, std::vector<int32_t>(2111, 1)});
  texts.push_back({"bytes", 256, random_integers(4501, 1, 256)});
  texts.push_back({"a vocabulary of two digits", 50257, random_integers(2501, 2, 50257)});
  texts.push_back({"a vocabulary of three digits", (1 << 18) + 5, random_integers(301, 3, (1 << 18) + 5)});
  Text often{"frequent and rare tokens", 1000, random_integers(5003, 4, 1000)};
  for (size_t i = 0; i < often.tokens.size(); ++i) {
    if (i % 3 != 0) often.tokens[i] = i % 2 == 0 ? 513 : 999;
  }
  texts.push_back(std::move(often));
  return texts;
}

// Small integer gradients: fp32 adds them exactly in any order, so a row missed or added twice shows.
TEST(Embedding, BackwardOfLongTextsIsExact) {
  for (const Text& text : long_texts()) {
    const int64_t rows = static_cast<int64_t>(text.tokens.size());
    for (const int64_t columns : {1, 40}) {
      if (text.vocabulary * columns > 500000) continue;
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        for (const GradientMode mode : {GradientMode::kWrite, GradientMode::kAccumulate}) {
          SCOPED_TRACE(::testing::Message() << text.what << ", " << columns << " columns, " << name(dtype));
          std::vector<double> dy(static_cast<size_t>(rows * columns));
          for (size_t i = 0; i < dy.size(); ++i) dy[i] = static_cast<double>((i * 7 + i / 13) % 17) - 8.0;
          std::vector<double> expected(static_cast<size_t>(text.vocabulary * columns),
                                       mode == GradientMode::kAccumulate ? 3.0 : 0.0);
          const Tensor d_token = mode == GradientMode::kAccumulate
                                     ? make_tensor(DType::kF32, {text.vocabulary, columns}, expected)
                                     : make_unwritten(DType::kF32, {text.vocabulary, columns});
          run(EmbeddingBackwardArgs{.tokens = make_indices(text.tokens),
                                    .dy = make_tensor(dtype, {rows, columns}, dy),
                                    .d_token_table = d_token,
                                    .sequence_length = rows,
                                    .token_mode = mode});
          for (size_t i = 0; i < dy.size(); ++i) {
            const size_t row = i / static_cast<size_t>(columns), column = i % static_cast<size_t>(columns);
            expected[static_cast<size_t>(text.tokens[row] * columns) + column] += dy[i];
          }
          EXPECT_TRUE(values_of(d_token) == expected);
        }
      }
    }
  }
}

// Fewer distinct tokens than a block has warps, in a text of several sort tiles.
TEST(Embedding, BackwardOfALongTextOfTwoTokensIsExact) {
  constexpr int64_t kRows = 6001;
  const std::vector<int32_t> tokens = random_integers(kRows, 1, 2);
  std::vector<double> dy(kRows), expected(2);
  for (size_t row = 0; row < dy.size(); ++row) {
    dy[row] = static_cast<double>(row % 7) - 2.0;
    expected[static_cast<size_t>(tokens[row])] += dy[row];
  }
  const Tensor d_token = make_unwritten(DType::kF32, {2, 1});
  run(EmbeddingBackwardArgs{.tokens = make_indices(tokens),
                            .dy = make_tensor(DType::kF32, {kRows, 1}, dy),
                            .d_token_table = d_token,
                            .sequence_length = kRows});
  EXPECT_EQ(values_of(d_token), expected);
}

TEST(Embedding, LongTextsGiveTheSameBitsOnEverySchedule) {
  for (const Text& text : long_texts()) {
    const int64_t rows = static_cast<int64_t>(text.tokens.size());
    expect_same_bits_on_every_schedule([&] {
      const Tensor d_token = make_unwritten(DType::kF32, {text.vocabulary, 2});
      run(EmbeddingBackwardArgs{.tokens = make_indices(text.tokens),
                                .dy = random_tensor(DType::kBF16, {rows, 2}, 4),
                                .d_token_table = d_token,
                                .sequence_length = rows});
      return std::vector<Tensor>{d_token};
    });
  }
}

TEST(Embedding, TheSameBitsOnEverySchedule) {
  const int64_t rows = kSequence * (device_under_test().large(140) / kSequence);
  const std::vector<int32_t> tokens = random_integers(rows, 1, kVocabulary);
  for (const DType dtype : kFloatDTypes) {
    expect_same_bits_on_every_schedule([&] {
      const Tensor y = make_unwritten(dtype, {rows, 321});
      const Tensor d_token = make_unwritten(DType::kF32, {kVocabulary, 321}),
                   d_position = make_unwritten(DType::kF32, {kPositions, 321});
      run(EmbeddingForwardArgs{.tokens = make_indices(tokens),
                               .token_table = random_tensor(dtype, {kVocabulary, 321}, 2),
                               .position_table = random_tensor(dtype, {kPositions, 321}, 3),
                               .y = y,
                               .sequence_length = kSequence});
      run(EmbeddingBackwardArgs{.tokens = make_indices(tokens),
                                .dy = random_tensor(dtype, {rows, 321}, 4),
                                .d_token_table = d_token,
                                .d_position_table = d_position,
                                .sequence_length = kSequence});
      return std::vector<Tensor>{y, d_token, d_position};
    });
  }
}

TEST(Embedding, RefusesWhatDoesNotFit) {
  const Tensor table = random_tensor(DType::kF32, {4, 3}, 1), y = make_unwritten(DType::kF32, {2, 3});
  EmbeddingForwardArgs args{.tokens = make_indices({0, 1, 2}), .token_table = table, .y = y};
  expect_contract_error([&] { run(args); }, "[embedding] tokens must have 2 elements, got shape (3)");
  args.tokens = make_indices({0, 1});
  args.starts = make_indices({0});
  expect_contract_error([&] { run(args); }, "[embedding] starts must have 2 elements, got shape (1)");
  args.starts = make_indices({0, 0});
  expect_contract_error([&] { run(args); }, "[embedding] starts need a positive sequence_length, got 0");
  args.starts = {};
  args.position_table = table;
  args.sequence_length = 3;
  expect_contract_error([&] { run(args); }, "[embedding] sequence_length must divide the 2 rows, got 3");
  expect_contract_error(
      [&] {
        run(EmbeddingBackwardArgs{
            .tokens = args.tokens, .dy = y, .d_token_table = make_unwritten(DType::kBF16, {4, 3})});
      },
      "[embedding backward] d_token_table must be fp32, got bf16");
}

}  // namespace
}  // namespace mantissa::kernel_test
