// attention and rope: shapes, masks, grouped heads, working in place. tests/core/kernels tests the kernels.
#include "core/ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/ops/add.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace attention_test {

using testing::error_of;
using testing::leaf;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr int64_t kBatch = 2, kLength = 5, kHeads = 4, kKvHeads = 2, kDim = 6;
constexpr int64_t kRows = kBatch * kLength, kPacked = (kHeads + 2 * kKvHeads) * kDim;

AttentionShape shape(Mask mask, int64_t length = kLength, int64_t heads = kHeads, int64_t kv_heads = kKvHeads,
                     int64_t dim = kDim) {
  return {.sequence_length = length, .num_heads = heads, .num_kv_heads = kv_heads, .head_dim = dim, .mask = mask};
}

// The formula in double, for one query after the other. starts: empty for one document.
Values naive_attention(const Values& qkv, const AttentionShape& seen, const std::vector<int32_t>& starts = {}) {
  const double scale = seen.scale == 0.0f ? 1.0 / std::sqrt(double{kDim}) : double{seen.scale};
  Values out(kRows * kHeads * kDim);
  const auto at = [&](int64_t row, int64_t head, int64_t i) { return double{qkv[row * kPacked + head * kDim + i]}; };
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t sequence = row / kLength * kLength, last = seen.mask == Mask::kCausal ? row : sequence + kLength - 1;
    int64_t first = sequence + (starts.empty() ? 0 : starts[static_cast<size_t>(row)]);
    if (seen.window > 0) first = std::max(first, row - seen.window + 1);
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t key = kHeads + head / (kHeads / kKvHeads), value = key + kKvHeads;
      double sum = 0.0, mixed[kDim] = {};
      for (int64_t other = first; other <= last; ++other) {
        double score = 0.0;
        for (int64_t i = 0; i < kDim; ++i) score += at(row, head, i) * at(other, key, i);
        const double weight = std::exp(scale * score);
        sum += weight;
        for (int64_t i = 0; i < kDim; ++i) mixed[i] += weight * at(other, value, i);
      }
      for (int64_t i = 0; i < kDim; ++i) out[(row * kHeads + head) * kDim + i] = static_cast<float>(mixed[i] / sum);
    }
  }
  return out;
}

class AttentionOp : public ::testing::Test {
 protected:
  AttentionOp() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }
  Values gradient(const Parameter& parameter) { return host_.values(parameter.gradient); }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& qkv_ = parameters_.add("qkv", {kRows, kPacked}, {Init::Kind::kNormal, 1.0f});
  Parameter& other_ = parameters_.add("other", {kRows, kPacked}, {Init::Kind::kNormal, 1.0f});
  const Values dy_ = testing::normal_values(kRows * kHeads * kDim, 4);
};

TEST_F(AttentionOp, ValueIsThatOfTheFormulaWithBothMasksAndGroupedHeads) {
  for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
    const auto tape = host_.tape(fp32_);
    const Tensor out = attention(*tape, leaf(*tape, qkv_), shape(mask)).value;
    EXPECT_EQ(out.shape(), (Shape{kRows, kHeads * kDim}));
    // Scores of up to ~10 have an absolute error of 10 eps in the exponent; sums of 5 and 6 terms add a few eps.
    EXPECT_LT(testing::relative_error(host_.values(out), naive_attention(host_.values(qkv_.weight), shape(mask))),
              16 * 0x1p-24);
  }
}

TEST_F(AttentionOp, KeepsTheCallersScaleWindowAndDocuments) {
  const std::vector<int32_t> starts = {0, 0, 2, 2, 2, 0, 1, 1, 1, 1};
  AttentionShape seen = shape(Mask::kCausal);
  seen.scale = 0.3f;
  seen.window = 2;
  const auto tape = host_.tape(fp32_);
  const Var out = attention(*tape, leaf(*tape, qkv_), seen, host_.tensor(starts));
  const Values qkv = host_.values(qkv_.weight);
  EXPECT_LT(testing::relative_error(host_.values(out.value), naive_attention(qkv, seen, starts)), 16 * 0x1p-24);
  tape->backward(weighted_sum(*tape, out, dy_));
  // The backward pass gets them too: two elements by their difference quotients, with errors of some 1e-4 by the step
  // and the rounding of y. The kernels' tests compare all.
  const Values d_qkv = gradient(qkv_);
  for (const size_t at : {size_t{3 * kPacked + 2}, size_t{8 * kPacked + kHeads * kDim}}) {
    double sums[2];
    for (const int side : {0, 1}) {
      Values moved = qkv;
      moved[at] += side == 0 ? 0x1p-7f : -0x1p-7f;
      const Values y = naive_attention(moved, seen, starts);
      sums[side] = 0.0;
      for (size_t i = 0; i < y.size(); ++i) sums[side] += double{y[i]} * double{dy_[i]};
    }
    EXPECT_NEAR(d_qkv[at], (sums[0] - sums[1]) / 0x1p-6, 1e-3);
  }
}

TEST_F(AttentionOp, ShapeErrorsSayWhatWasExpected) {
  const auto tape = host_.tape(fp32_);
  const Var narrow{host_.tensor(Values(20), {5, 4})}, odd{host_.tensor(Values(4 * kPacked), {4, kPacked})};
  EXPECT_EQ(error_of([&] { attention(*tape, narrow, shape(Mask::kCausal)); }),
            "[attention] qkv must be (R, (4 + 2 * 2) * 6) = (R, 48), got (5, 4)");
  EXPECT_EQ(error_of([&] { attention(*tape, odd, shape(Mask::kCausal)); }),
            "[attention] 4 rows are not a whole number of sequences of 5");
  const Var uneven{host_.tensor(Values(5 * 54), {5, 54})};
  EXPECT_EQ(error_of([&] { attention(*tape, uneven, shape(Mask::kCausal, 5, 3, 3)); }), "");
  EXPECT_EQ(error_of([&] { attention(*tape, uneven, shape(Mask::kCausal, 5, 5, 2)); }),
            "[attention] 5 query heads are not a multiple of 2 key/value heads");
}

TEST_F(AttentionOp, CausalMaskHidesLaterPositionsAndOtherSequences) {
  const auto tape = host_.tape(fp32_);
  const Values before = host_.values(attention(*tape, leaf(*tape, qkv_), shape(Mask::kCausal)).value);
  Values changed = host_.values(qkv_.weight);
  for (int64_t i = 3 * kPacked; i < 4 * kPacked; ++i)
    changed[static_cast<size_t>(i)] += 1.0f;  // position 3 of sequence 0
  const Tensor input = host_.tensor(changed, {kRows, kPacked});
  const Values after = host_.values(attention(*tape, Var{input}, shape(Mask::kCausal)).value);
  const auto row = [](const Values& values, int64_t r) {
    return Values(values.begin() + r * kHeads * kDim, values.begin() + (r + 1) * kHeads * kDim);
  };
  for (const int64_t unaffected : {0, 1, 2, 5, 6, 7, 8, 9}) EXPECT_EQ(row(after, unaffected), row(before, unaffected));
  for (const int64_t affected : {3, 4}) EXPECT_NE(row(after, affected), row(before, affected));
}

TEST_F(AttentionOp, ComputesInTheLowPrecisionAndReturnsAGradientInTheInputsDtype) {
  const UniformPrecision bf16(testing::autocast(DType::kBF16));
  const auto tape = host_.tape(bf16);
  const Var out = attention(*tape, leaf(*tape, qkv_), shape(Mask::kCausal));
  EXPECT_EQ(out.value.dtype(), DType::kBF16);
  tape->backward(weighted_sum(*tape, out, dy_));
  const Values low = gradient(qkv_);
  parameters_.forget_gradients();
  const auto wide = host_.tape(fp32_);
  wide->backward(weighted_sum(*wide, attention(*wide, leaf(*wide, qkv_), shape(Mask::kCausal)), dy_));
  const double error = testing::relative_error(low, gradient(qkv_));
  // Rounded: qkv, dy, out, probabilities, their gradient and d_qkv. Six relative errors of at most 2^-8.
  EXPECT_GT(error, 0x1p-10);
  EXPECT_LT(error, 6 * 0x1p-8);
}

TEST_F(AttentionOp, RopeNeedsPairs) {
  const auto tape = host_.tape(fp32_);
  EXPECT_EQ(error_of([&] {
              rope(*tape, Var{host_.tensor(Values(15), {1, 15})}, shape(Mask::kCausal, 1, 1, 1, 5), RopeFrequencies{});
            }),
            "[rope] head_dim must be even, got 5");
}

TEST_F(AttentionOp, RopeRotatesQueriesAndKeysByTheirPositionAndLeavesValues) {
  const auto tape = host_.tape(fp32_);
  const Values x = host_.values(qkv_.weight);
  const Values y = host_.values(rope(*tape, leaf(*tape, qkv_), shape(Mask::kCausal), {.base = 100.0f}).value);
  Values expected = x;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t head = 0; head < kHeads + kKvHeads; ++head) {
      for (int64_t i = 0; i < kDim / 2; ++i) {
        const double angle = static_cast<double>(row % kLength) * std::pow(100.0, -2.0 * static_cast<double>(i) / kDim);
        const size_t a = static_cast<size_t>(row * kPacked + head * kDim + i), b = a + kDim / 2;
        expected[a] = static_cast<float>(x[a] * std::cos(angle) - x[b] * std::sin(angle));
        expected[b] = static_cast<float>(x[b] * std::cos(angle) + x[a] * std::sin(angle));
      }
    }
  }
  // Angles of up to 4 radians in fp32 are off by at most 4 * 2^-24, and so are the rotated values.
  EXPECT_LT(testing::relative_error(y, expected), 8 * 0x1p-24);
}

TEST_F(AttentionOp, RopeCountsPositionsFromTheStartOfADocument) {
  const std::vector<int32_t> starts = {0, 0, 2, 2, 2, 0, 1, 1, 1, 4};
  const std::vector<int64_t> positions = {0, 1, 0, 1, 2, 0, 0, 1, 2, 0};
  const auto tape = host_.tape(fp32_);
  const Tensor documents = host_.tensor(starts);
  const Var y = rope(*tape, leaf(*tape, qkv_), shape(Mask::kCausal), RopeFrequencies{}, documents);
  const Values rotated = host_.values(y.value), x = host_.values(qkv_.weight);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto at = [&](const Values& values) {
      return Values(values.begin() + row * kPacked, values.begin() + (row + 1) * kPacked);
    };
    // Row `position` of a sequence of its own has the same place.
    Values sequence;
    for (int64_t t = 0; t < kLength; ++t) {
      const Values of_row = at(x);
      sequence.insert(sequence.end(), of_row.begin(), of_row.end());
    }
    const Var alone{host_.tensor(sequence, {kLength, kPacked})};
    const Values expected = host_.values(rope(*tape, alone, shape(Mask::kCausal), RopeFrequencies{}).value);
    const int64_t position = positions[static_cast<size_t>(row)];
    EXPECT_EQ(at(rotated), Values(expected.begin() + position * kPacked, expected.begin() + (position + 1) * kPacked));
  }
  tape->backward(weighted_sum(*tape, y, rotated));
  EXPECT_LT(testing::relative_error(gradient(qkv_), x), 8 * 0x1p-24) << "rotated back by the same angles";
}

TEST_F(AttentionOp, RopeWorksInPlaceOnlyOnTheLastReference) {
  const auto tape = host_.tape(fp32_);
  const Values before = host_.values(qkv_.weight);
  const Var kept = leaf(*tape, qkv_);
  const Tensor copy = rope(*tape, kept, shape(Mask::kCausal), RopeFrequencies{}).value;
  EXPECT_NE(copy.raw(), kept.value.raw());
  EXPECT_EQ(host_.values(kept.value), before) << "the caller's tensor is left alone";
  Var moved = leaf(*tape, qkv_);
  const std::byte* address = moved.value.raw();
  const Tensor in_place = rope(*tape, std::move(moved), shape(Mask::kCausal), RopeFrequencies{}).value;
  EXPECT_EQ(in_place.raw(), address);
  EXPECT_EQ(host_.values(in_place), host_.values(copy));
}

TEST_F(AttentionOp, RopeBackwardInPlaceEqualsOutOfPlaceAndUndoesTheRotation) {
  const Values dy = testing::normal_values(kRows * kPacked, 8);
  const auto pass = [&](const Values& direction, bool shared) {
    parameters_.forget_gradients();
    const auto tape = host_.tape(fp32_);
    const Var residual = leaf(*tape, other_);
    Var y = rope(*tape, leaf(*tape, qkv_), shape(Mask::kCausal), RopeFrequencies{});
    if (shared) y = add(*tape, residual, y);  // the sum and rope then share one gradient tensor: no overwriting
    tape->backward(weighted_sum(*tape, y, direction));
    return gradient(qkv_);
  };
  const Values in_place = pass(dy, false);
  EXPECT_EQ(pass(dy, true), in_place);
  EXPECT_EQ(gradient(other_), dy) << "not overwritten";
  // Rotations are orthogonal: rope's backward pass, applied to rope(x), returns x.
  const auto tape = host_.tape(fp32_);
  const Values rotated = host_.values(rope(*tape, leaf(*tape, qkv_), shape(Mask::kCausal), RopeFrequencies{}).value);
  EXPECT_LT(testing::relative_error(pass(rotated, false), host_.values(qkv_.weight)), 8 * 0x1p-24);
}

}  // namespace attention_test
}  // namespace mantissa
