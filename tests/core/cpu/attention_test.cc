#include "core/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/core/cpu/attention_case.h"
#include "tests/core/cpu/kernel_check.h"
#include "tests/reference/random_values.h"

namespace mantissa::cpu {
namespace {

using reference::AttentionCase;

constexpr double kInf = std::numeric_limits<double>::infinity();

void expect_agreement(const AttentionCase& c) {
  for (const DType dtype : kFloatDTypes) {
    const AttentionRun run(c, dtype);
    run.expect_forward();
    run.expect_backward();
  }
}

TEST(Attention, AgreesWithTheReferenceAtOddSizes) {
  for (const size_t length : {1u, 2u, 63u, 64u, 65u, 130u}) {
    for (const size_t dim : {1u, 5u, 64u, 72u, 128u}) {
      for (const bool causal : {true, false}) {
        SCOPED_TRACE(testing::Message() << "T=" << length << " D=" << dim << (causal ? " causal" : " unmasked"));
        expect_agreement({1, length, 2, 2, dim, 1.0 / std::sqrt(static_cast<double>(dim)), causal});
      }
    }
  }
}

TEST(Attention, GroupedQueriesAndBatchesOnEveryInstructionSet) {
  on_each_target([] {
    for (const bool causal : {true, false}) {
      expect_agreement({2, 67, 4, 2, 5, 0.4, causal});
      expect_agreement({2, 66, 4, 1, 72, 0.1, causal});
    }
  });
}

TEST(Attention, LargeScoresDoNotOverflow) {
  // exp of a raw score would: up to 64 * 25 = 1600.
  expect_agreement({1, 130, 1, 1, 64, 25.0, true});
}

TEST(Attention, ThreadsDoNotMatter) {
  for (const DType dtype : kFloatDTypes) {
    for (const bool causal : {true, false}) {
      expect_same_for_any_thread_count([&] {
        const AttentionRun run({2, 200, 4, 2, 24, 0.2, causal}, dtype);
        return std::vector<Tensor>{run.out, run.lse, run.d_qkv};
      });
    }
  }
}

// A value of the only head of T = 130 set to `value`; which rows of out, lse and d_qkv are then NaN.
class NonFinite : public testing::TestWithParam<DType> {
 protected:
  static constexpr size_t kLength = 130, kDim = 3, kAt = 70;  // kAt is in the second block of 64

  static AttentionCase shape(bool causal) { return {1, kLength, 1, 1, kDim, 0.5, causal}; }
  static std::vector<double> inputs(const AttentionCase& c) {
    return reference::random_values(static_cast<int64_t>(c.qkv_size()), 1);
  }
  static std::vector<double> gradients(const AttentionCase& c) {
    return reference::random_values(static_cast<int64_t>(c.out_size()), 2);
  }
  static bool all_nan(const std::vector<double>& values, size_t begin, size_t count) {
    return std::all_of(values.begin() + begin, values.begin() + begin + count, [](double v) { return std::isnan(v); });
  }
  static bool all_finite(const std::vector<double>& values, size_t begin, size_t count) {
    return std::all_of(values.begin() + begin, values.begin() + begin + count,
                       [](double v) { return std::isfinite(v); });
  }
};

TEST_P(NonFinite, QueryReachesItsRowOnly) {
  for (const double bad : {static_cast<double>(NAN), kInf}) {
    const AttentionCase c = shape(false);
    std::vector<double> qkv = inputs(c);
    qkv[c.query(0, 0, kAt)] = bad;  // an Inf makes scores of +Inf and -Inf: no probabilities
    const AttentionRun run(c, GetParam(), qkv, gradients(c));
    const std::vector<double> out = values_of(run.out), lse = values_of(run.lse), d_qkv = values_of(run.d_qkv);
    for (size_t t = 0; t < kLength; ++t) {
      EXPECT_EQ(all_nan(out, c.out(0, 0, t), kDim), t == kAt) << t;
      EXPECT_EQ(all_finite(out, c.out(0, 0, t), kDim), t != kAt) << t;
      EXPECT_EQ(std::isfinite(lse[t]), t != kAt) << t;
      EXPECT_EQ(all_finite(d_qkv, c.query(0, 0, t), kDim), t != kAt) << t;
      EXPECT_TRUE(all_nan(d_qkv, c.key(0, 0, t), kDim)) << t;  // every key was seen by the query
    }
  }
}

TEST_P(NonFinite, KeyReachesTheQueriesThatSeeIt) {
  for (const bool causal : {true, false}) {
    const AttentionCase c = shape(causal);
    std::vector<double> qkv = inputs(c);
    qkv[c.key(0, 0, kAt) + 2] = NAN;
    const AttentionRun run(c, GetParam(), qkv, gradients(c));
    const std::vector<double> out = values_of(run.out), lse = values_of(run.lse);
    for (size_t t = 0; t < kLength; ++t) {
      EXPECT_EQ(all_nan(out, c.out(0, 0, t), kDim), t >= kAt || !causal) << t;
      EXPECT_EQ(std::isnan(lse[t]), t >= kAt || !causal) << t;
      EXPECT_EQ(all_finite(out, c.out(0, 0, t), kDim), causal && t < kAt) << t;
    }
  }
}

TEST_P(NonFinite, ValueReachesTheQueriesThatSeeItAndNoEarlierBlock) {
  const AttentionCase c = shape(true);
  std::vector<double> qkv = inputs(c);
  qkv[c.value(0, 0, kAt) + 1] = NAN;
  const std::vector<double> out = values_of(AttentionRun(c, GetParam(), qkv, gradients(c)).out);
  for (size_t t = kAt; t < kLength; ++t) EXPECT_TRUE(std::isnan(out[c.out(0, 0, t) + 1])) << t;
  EXPECT_TRUE(all_finite(out, 0, 64 * kDim));
}

TEST_P(NonFinite, GradientReachesItsQueryAndTheKeysItSaw) {
  const AttentionCase c = shape(true);
  std::vector<double> d_out = gradients(c);
  d_out[c.out(0, 0, kAt) + 1] = NAN;
  const AttentionRun run(c, GetParam(), inputs(c), d_out);
  const std::vector<double> d_qkv = values_of(run.d_qkv);
  EXPECT_TRUE(all_finite(values_of(run.out), 0, c.out_size()));
  for (size_t t = 0; t < kLength; ++t) {
    EXPECT_EQ(all_nan(d_qkv, c.query(0, 0, t), kDim), t == kAt) << t;
    if (t <= kAt) {
      EXPECT_TRUE(all_nan(d_qkv, c.key(0, 0, t), kDim)) << t;
      EXPECT_TRUE(std::isnan(d_qkv[c.value(0, 0, t) + 1])) << t;
    }
  }
  for (size_t t = 128; t < kLength; ++t) EXPECT_TRUE(all_finite(d_qkv, c.key(0, 0, t), kDim)) << t;  // a later block
}

INSTANTIATE_TEST_SUITE_P(AllDTypes, NonFinite, testing::ValuesIn(kFloatDTypes),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(Attention, ScoresOfMinusInfinityAreProbabilitiesOfZero) {
  // The whole first block of keys scores -Inf (fp32 overflow), the keys after it 0: they share the probability.
  const AttentionCase c{1, 66, 1, 1, 2, 1.0, false};
  std::vector<double> qkv(c.qkv_size());
  for (size_t t = 0; t < c.length; ++t) {
    qkv[c.query(0, 0, t)] = 1e30;
    qkv[c.key(0, 0, t)] = t < 64 ? -1e30 : 0.0;
    qkv[c.value(0, 0, t)] = static_cast<double>(t);
  }
  const AttentionRun run(c, DType::kF32, qkv, std::vector<double>(c.out_size()));
  const std::vector<double> out = values_of(run.out), lse = values_of(run.lse);
  for (size_t t = 0; t < c.length; ++t) {
    EXPECT_EQ(out[c.out(0, 0, t)], 64.5);
    EXPECT_NEAR(lse[t], std::log(2.0), 0x1p-23);
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const AttentionRun run({1, 2, 4, 2, 3, 1.0, true}, DType::kBF16);
  AttentionForwardArgs forward = run.forward_args();
  forward.num_kv_heads = 3;
  expect_contract_error([&] { attention_forward(forward); },
                        "[attention_forward] num_heads must be a multiple of num_kv_heads, got 4 and 3");
  forward = run.forward_args();
  forward.lse = run.out;
  expect_contract_error([&] { attention_forward(forward); }, "[attention_forward] lse must be fp32, got bf16");
  AttentionBackwardArgs backward = run.backward_args();
  backward.d_qkv = run.out;
  expect_contract_error([&] { attention_backward(backward); }, "[attention_backward] d_qkv must have shape");
}

}  // namespace
}  // namespace mantissa::cpu
