// head_norm: the formula and its derivative, weights of their own for queries and keys, working in place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>

#include "core/ops/add.h"
#include "core/ops/norm.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace head_norm_test {

using testing::leaf;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr int64_t kRows = 5, kHeads = 4, kKvHeads = 2, kDim = 6, kPacked = (kHeads + 2 * kKvHeads) * kDim;
constexpr float kEpsilon = 1e-3f;
constexpr AttentionShape kShape{
    .sequence_length = kRows, .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kDim};

template <typename T>
std::vector<T> normed(const std::vector<T>& x, const std::vector<T>& query, const std::vector<T>& key) {
  std::vector<T> y = x;
  for (size_t head = 0; head < x.size() / kDim; ++head) {
    const size_t of_row = head % (kHeads + 2 * kKvHeads);
    if (of_row >= kHeads + kKvHeads) continue;
    T squares = 0;
    for (size_t i = 0; i < kDim; ++i) squares += x[head * kDim + i] * x[head * kDim + i];
    const T root = std::sqrt(squares / static_cast<double>(kDim) + static_cast<double>(kEpsilon));
    for (size_t i = 0; i < kDim; ++i) y[head * kDim + i] *= (of_row < kHeads ? query : key)[i] / root;
  }
  return y;
}

class HeadNormOp : public ::testing::Test {
 protected:
  HeadNormOp() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
    host_.set_weight(query_, {0.5f, 1.5f, -1.0f, 2.0f, 0.0f, 1.0f});
    host_.set_weight(key_, {1.0f, 0.25f, 3.0f, -0.5f, 1.0f, 0.75f});
  }
  Var norm(Tape& tape, Var x) { return head_norm(tape, std::move(x), kShape, query_, key_, kEpsilon); }
  void pass(bool shared = false) {
    const auto tape = host_.tape(fp32_);
    const Var residual = leaf(*tape, other_);
    Var y = norm(*tape, leaf(*tape, qkv_));
    if (shared) y = add(*tape, residual, y);  // the sum and head_norm then share one gradient tensor: no overwriting
    tape->backward(weighted_sum(*tape, y, dy_));
  }
  Values gradient(const Parameter& parameter) { return host_.values(parameter.gradient); }
  std::vector<std::complex<double>> complex(const Parameter& parameter) {
    const Values values = host_.values(parameter.weight);
    return {values.begin(), values.end()};
  }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& qkv_ = parameters_.add("qkv", {kRows, kPacked}, {Init::Kind::kNormal, 1.0f});
  Parameter& other_ = parameters_.add("other", {kRows, kPacked}, {Init::Kind::kNormal, 1.0f});
  Parameter& query_ = parameters_.add("query_norm", {kDim}, {});
  Parameter& key_ = parameters_.add("key_norm", {kDim}, {});
  const Values dy_ = testing::normal_values(kRows * kPacked, 4);
};

TEST_F(HeadNormOp, ValueAndGradientsAreThoseOfTheFormula) {
  const auto x = complex(qkv_), query = complex(query_), key = complex(key_);
  const auto y = normed(x, query, key);
  Values expected(y.size());
  std::transform(y.begin(), y.end(), expected.begin(), [](const auto& v) { return static_cast<float>(v.real()); });
  const auto tape = host_.tape(fp32_);
  const Values value = host_.values(norm(*tape, leaf(*tape, qkv_)).value);
  EXPECT_LT(testing::relative_error(value, expected), 8 * 0x1p-24);
  const auto values_begin = (kHeads + kKvHeads) * kDim;
  for (int64_t row = 0; row < kRows; ++row) {  // values, bit by bit
    const auto first = row * kPacked + values_begin, last = (row + 1) * kPacked;
    EXPECT_TRUE(std::equal(value.begin() + first, value.begin() + last, expected.begin() + first));
  }

  pass();
  // d/dv of the weighted sum by a complex step at each element of `of`.
  const auto derivative = [&](int of) {
    auto operands = std::array{x, query, key};
    Values d;
    for (std::complex<double>& element : operands[static_cast<size_t>(of)]) {
      constexpr double kStep = 1e-30;
      element.imag(kStep);
      const auto stepped = normed(operands[0], operands[1], operands[2]);
      element.imag(0.0);
      double sum = 0.0;
      for (size_t i = 0; i < stepped.size(); ++i) sum += double{dy_[i]} * stepped[i].imag();
      d.push_back(static_cast<float>(sum / kStep));
    }
    return d;
  };
  EXPECT_LT(testing::relative_error(gradient(qkv_), derivative(0)), 16 * 0x1p-24);
  EXPECT_LT(testing::relative_error(gradient(query_), derivative(1)), 16 * 0x1p-24);
  EXPECT_LT(testing::relative_error(gradient(key_), derivative(2)), 16 * 0x1p-24);
}

TEST_F(HeadNormOp, ResultInBf16IsTheFp32ResultRoundedOnce) {
  const auto tape = host_.tape(fp32_);
  const Var low{tape->cast(qkv_.weight, DType::kBF16)}, wide{tape->cast(low.value, DType::kF32)};
  const Var y = norm(*tape, low);
  EXPECT_EQ(y.value.dtype(), DType::kBF16);
  EXPECT_EQ(host_.values(y.value), host_.values(tape->cast(norm(*tape, wide).value, DType::kBF16)));
}

TEST_F(HeadNormOp, WeightGradientsAccumulate) {
  pass();
  Values query = gradient(query_), key = gradient(key_);
  pass();
  for (Values* const once : {&query, &key}) {
    for (float& value : *once) value *= 2;
  }
  EXPECT_EQ(gradient(query_), query) << "doubling is exact";
  EXPECT_EQ(gradient(key_), key);
}

TEST_F(HeadNormOp, BackwardInPlaceEqualsOutOfPlace) {
  pass();
  const Values in_place = gradient(qkv_);
  parameters_.forget_gradients();
  pass(true);
  EXPECT_EQ(gradient(qkv_), in_place);
  EXPECT_EQ(gradient(other_), dy_) << "not overwritten";
}

TEST_F(HeadNormOp, OnlyAnEvaluationWorksInPlaceOnTheLastReference) {
  const Values before = host_.values(qkv_.weight);
  Values results[2];
  for (const TapeMode mode : {TapeMode::kEvaluation, TapeMode::kTraining}) {
    const auto tape = host_.tape(fp32_, {.mode = mode});
    const bool evaluates = mode == TapeMode::kEvaluation;
    Var moved = leaf(*tape, qkv_);
    const std::byte* const address = moved.value.raw();
    const Var y = norm(*tape, std::move(moved));
    EXPECT_EQ(y.value.raw() == address, evaluates);
    const Var kept = leaf(*tape, qkv_);
    results[evaluates ? 0 : 1] = host_.values(norm(*tape, kept).value);
    EXPECT_EQ(host_.values(kept.value), before) << "the caller's tensor is left alone";
    EXPECT_EQ(host_.values(y.value), results[evaluates ? 0 : 1]);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(HeadNormOp, ShapeErrorsSayWhatWasExpected) {
  const auto tape = host_.tape(fp32_);
  EXPECT_EQ(testing::error_of([&] {
              norm(*tape, Var{host_.tensor(Values(20), {5, 4})});
            }),
            "[head_norm] qkv must be (R, (4 + 2 * 2) * 6) = (R, 48), got (5, 4)");
  EXPECT_EQ(testing::error_of([&] { head_norm(*tape, leaf(*tape, qkv_), kShape, query_, other_, kEpsilon); }),
            "[head_norm] weights must have shape (6), got (5, 48)");
}

}  // namespace head_norm_test
}  // namespace mantissa
