#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "tests/core/kernels/attention/attention_case.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/random_values.h"
#include "tests/testing/every_case.h"

namespace mantissa::kernel_test {
namespace {

using reference::AttentionCase;

constexpr double kInf = std::numeric_limits<double>::infinity();

void expect_agreement(const AttentionCase& c, DType dtype) {
  const AttentionRun run(c, dtype);
  run.expect_forward();
  run.expect_backward();
}

TEST(Attention, AgreesWithTheReferenceAtOddSizes) {
  size_t index = 0;
  for (const size_t length : {1u, 2u, 63u, 64u, 65u, 130u}) {
    for (const size_t dim : {1u, 5u, 64u, 72u, 128u}) {
      for (const bool causal : {true, false}) {
        for (const DType dtype : kFloatDTypes) {
          if (!device_under_test().takes_case(index++)) continue;
          SCOPED_TRACE(::testing::Message() << "T=" << length << " D=" << dim << (causal ? " causal" : " unmasked"));
          expect_agreement({1, length, 2, 2, dim, 1.0 / std::sqrt(static_cast<double>(dim)), causal}, dtype);
        }
      }
    }
  }
}

// Rows of whole multiples of 16 bytes take another path on a GPU, which pads heads to a multiple of 32. So do tensors
// that begin at a 16-byte boundary.
TEST(Attention, AgreesWithTheReferenceWhateverTheAlignmentOfRows) {
  size_t index = 0;
  for (const size_t dim : {8u, 16u, 32u, 40u, 64u, 80u, 96u, 104u, 128u}) {
    for (const size_t length : {31u, 129u, 200u}) {
      if (length == 200 && dim % 32 != 0 && !testing::every_case()) continue;  // the reference takes most of the time
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        for (const bool causal : {true, false}) {
          for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
            if (!device_under_test().takes_case(index++)) continue;
            SCOPED_TRACE(::testing::Message() << "T=" << length << " D=" << dim << (causal ? " causal" : " unmasked"));
            const PlacementScope scope(placement);
            expect_agreement({1, length, 2, 1, dim, 1.0 / std::sqrt(static_cast<double>(dim)), causal}, dtype);
          }
        }
      }
    }
  }
  // The last row of the terms of rows, which are made in blocks, is a position.
  const PlacementScope scope(Placement::kMisaligned);
  expect_agreement({1, 128, 1, 1, 8, 0.35, true}, DType::kBF16);
}

TEST(Attention, AgreesWithTheReferenceInWideHeads) {
  for (const DType dtype : kFloatDTypes) expect_agreement({1, 67, 2, 1, 200, 0.05, true}, dtype);
}

// A negative scale reverses the order of scores; a scale of 0 makes them all equal.
TEST(Attention, AgreesWithTheReferenceAtAnyScale) {
  for (const double scale : {-0.3, 0.0}) {
    for (const bool causal : {true, false}) {
      const PlacementScope scope(Placement::kAligned);
      expect_agreement({1, 66, 1, 1, 16, scale, causal}, DType::kBF16);
    }
  }
}

TEST(Attention, GroupedQueriesAndBatchesOnEveryVariant) {
  size_t index = 0;
  device_under_test().on_each_variant([&] {
    for (const bool causal : {true, false}) {
      for (const DType dtype : kFloatDTypes) {
        for (const auto& [c, placement] : {std::pair{AttentionCase{2, 67, 4, 2, 5, 0.4, causal}, Placement::kAtTheEnd},
                                           {AttentionCase{2, 66, 4, 1, 72, 0.1, causal}, Placement::kAtTheEnd},
                                           {AttentionCase{2, 131, 4, 2, 8, 0.3, causal}, Placement::kAligned}}) {
          if (!device_under_test().takes_case(index++)) continue;
          const PlacementScope scope(placement);
          expect_agreement(c, dtype);
        }
      }
    }
  });
}

// Long enough for a CPU to split the queries of its backward pass into segments, with an incomplete last one. It works
// segment by segment for a single key head of a single sequence, but not for two.
TEST(Attention, LongSequencesOfFewKeyHeads) {
  const size_t length = static_cast<size_t>(device_under_test().large(523));
  size_t index = 0;
  for (const bool causal : {true, false}) {
    for (const DType dtype : kFloatDTypes) {
      for (const AttentionCase& c :
           {AttentionCase{1, length, 1, 1, 6, 0.4, causal}, AttentionCase{1, length, 3, 1, 6, 0.4, causal},
            AttentionCase{1, length, 4, 2, 5, 0.4, causal}, AttentionCase{3, length / 2, 2, 1, 10, 0.3, causal}}) {
        if (!device_under_test().takes_case(index++)) continue;
        SCOPED_TRACE(::testing::Message() << "B=" << c.batch << " T=" << c.length << " heads " << c.heads << " and "
                                          << c.kv_heads << (causal ? " causal" : " unmasked"));
        expect_agreement(c, dtype);
      }
    }
  }
  device_under_test().on_each_variant([&] {
    for (const DType dtype : {DType::kF32, DType::kBF16}) expect_agreement({1, length, 2, 1, 10, 0.3, true}, dtype);
  });
}

// Kernels of other libraries are created and checked in the first call, and used alone from the second on.
TEST(Attention, HeadsOfLargeModelsOnEveryVariant) {
  const size_t length = static_cast<size_t>(device_under_test().large(140));
  size_t index = 0;
  device_under_test().on_each_variant([&] {
    const PlacementScope scope(Placement::kAligned);
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const bool causal : {true, false}) {
        for (const AttentionCase& c :
             {AttentionCase{1, length, 2, 2, 64, 0.125, causal}, AttentionCase{1, length, 4, 2, 128, 0.09, causal}}) {
          if (!device_under_test().takes_case(index++)) continue;
          for (int call = 0; call < 2; ++call) expect_agreement(c, dtype);
        }
      }
    }
  });
}

TEST(Attention, LargeScoresDoNotOverflow) {
  // exp of a raw score would overflow: scores reach 64 * 25 = 1600.
  for (const DType dtype : kFloatDTypes) expect_agreement({1, 130, 1, 1, 64, 25.0, true}, dtype);
}

TEST(Attention, TheSameBitsOnEverySchedule) {
  const size_t length = static_cast<size_t>(device_under_test().large(200));
  for (const DType dtype : kFloatDTypes) {
    for (const bool causal : {true, false}) {
      for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
        const PlacementScope scope(placement);
        expect_same_bits_on_every_schedule([&] {
          const AttentionRun run({1, length, 4, 2, 24, 0.2, causal}, dtype);
          return std::vector<Tensor>{run.out, run.lse, run.d_qkv};
        });
      }
    }
  }
}

// The only head of T = 130 has a non-finite element. Tests check the non-finite rows of out, lse and d_qkv. Blocks of
// masked keys and values are skipped as a whole. Within a block, of at most 128 positions, a masked probability of 0
// times NaN is NaN.
class NonFinite : public ::testing::TestWithParam<std::tuple<DType, size_t>> {
 protected:
  static constexpr size_t kLength = 130, kAt = 70, kBlock = 128;
  const DType dtype = std::get<0>(GetParam());
  const size_t dim = std::get<1>(GetParam());

  AttentionCase shape(bool causal) const { return {1, kLength, 1, 1, dim, 0.5, causal}; }
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
    qkv[c.query(0, 0, kAt)] = bad;  // an Inf gives scores of +Inf and -Inf: no probabilities
    const AttentionRun run(c, dtype, qkv, gradients(c));
    const std::vector<double> out = values_of(run.out), lse = values_of(run.lse), d_qkv = values_of(run.d_qkv);
    for (size_t t = 0; t < kLength; ++t) {
      EXPECT_EQ(all_nan(out, c.out(0, 0, t), dim), t == kAt) << t;
      EXPECT_EQ(all_finite(out, c.out(0, 0, t), dim), t != kAt) << t;
      EXPECT_EQ(std::isfinite(lse[t]), t != kAt) << t;
      EXPECT_EQ(all_finite(d_qkv, c.query(0, 0, t), dim), t != kAt) << t;
      EXPECT_TRUE(all_nan(d_qkv, c.key(0, 0, t), dim)) << t;  // the query saw every key
    }
  }
}

TEST_P(NonFinite, KeyReachesTheQueriesThatSeeIt) {
  for (const bool causal : {true, false}) {
    const AttentionCase c = shape(causal);
    std::vector<double> qkv = inputs(c);
    qkv[c.key(0, 0, kAt) + 2] = NAN;
    const AttentionRun run(c, dtype, qkv, gradients(c));
    const std::vector<double> out = values_of(run.out), lse = values_of(run.lse);
    for (size_t t = 0; t < kLength; ++t) {
      EXPECT_EQ(all_nan(out, c.out(0, 0, t), dim), t >= kAt || !causal) << t;
      EXPECT_EQ(std::isnan(lse[t]), t >= kAt || !causal) << t;
      EXPECT_EQ(all_finite(out, c.out(0, 0, t), dim), causal && t < kAt) << t;
    }
  }
}

TEST_P(NonFinite, ValueReachesTheQueriesThatSeeItAndNoEarlierBlock) {
  const AttentionCase c = shape(true);
  for (const size_t at : {kAt, kBlock}) {
    std::vector<double> qkv = inputs(c);
    qkv[c.value(0, 0, at) + 1] = NAN;
    const std::vector<double> out = values_of(AttentionRun(c, dtype, qkv, gradients(c)).out);
    for (size_t t = at; t < kLength; ++t) EXPECT_TRUE(std::isnan(out[c.out(0, 0, t) + 1])) << t;
    EXPECT_TRUE(all_finite(out, 0, at / kBlock * kBlock * dim));
  }
}

TEST_P(NonFinite, GradientReachesItsQueryAndTheKeysItSaw) {
  const AttentionCase c = shape(true);
  std::vector<double> d_out = gradients(c);
  d_out[c.out(0, 0, kAt) + 1] = NAN;
  const AttentionRun run(c, dtype, inputs(c), d_out);
  const std::vector<double> d_qkv = values_of(run.d_qkv);
  EXPECT_TRUE(all_finite(values_of(run.out), 0, c.out_size()));
  for (size_t t = 0; t < kLength; ++t) {
    EXPECT_EQ(all_nan(d_qkv, c.query(0, 0, t), dim), t == kAt) << t;
    if (t <= kAt) {
      EXPECT_TRUE(all_nan(d_qkv, c.key(0, 0, t), dim)) << t;
      EXPECT_TRUE(std::isnan(d_qkv[c.value(0, 0, t) + 1])) << t;
    }
  }
  for (size_t t = kBlock; t < kLength; ++t) EXPECT_TRUE(all_finite(d_qkv, c.key(0, 0, t), dim)) << t;  // a later block
}

// The larger dimension makes rows of a multiple of 16 bytes.
INSTANTIATE_TEST_SUITE_P(AllDTypes, NonFinite,
                         ::testing::Combine(::testing::ValuesIn(kFloatDTypes),
                                            ::testing::Values(size_t{3}, size_t{16})),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(Attention, ScoresOfMinusInfinityAreProbabilitiesOfZero) {
  // The first 64 keys all score -Inf (fp32 overflow). The later keys score 0 and share the probability.
  for (const auto& [dtype, dim] : {std::pair{DType::kF32, 2}, std::pair{DType::kBF16, 8}}) {
    const AttentionCase c{1, 66, 1, 1, static_cast<size_t>(dim), 1.0, false};
    std::vector<double> qkv(c.qkv_size());
    for (size_t t = 0; t < c.length; ++t) {
      qkv[c.query(0, 0, t)] = 1e30;
      qkv[c.key(0, 0, t)] = t < 64 ? -1e30 : 0.0;
      qkv[c.value(0, 0, t)] = static_cast<double>(t);
    }
    const AttentionRun run(c, dtype, qkv, std::vector<double>(c.out_size()));
    const std::vector<double> out = values_of(run.out), lse = values_of(run.lse);
    for (size_t t = 0; t < c.length; ++t) {
      EXPECT_EQ(out[c.out(0, 0, t)], 64.5);
      EXPECT_NEAR(lse[t], std::log(2.0), 0x1p-23);
    }
  }
}

// Softmax is 0/0 or Inf/Inf if all scores are -Inf or one is +Inf. The results must not be finite.
TEST(Attention, QueriesWithoutProbabilitiesAreNotNumbers) {
  constexpr size_t kAt = 40;
  for (const auto& [dtype, dim] : {std::pair{DType::kF32, 2}, {DType::kBF16, 3}, {DType::kBF16, 8}}) {
    for (const double key : {-1e30, 1e30}) {
      const AttentionCase c{1, 130, 1, 1, static_cast<size_t>(dim), 1.0, false};
      std::vector<double> qkv(c.qkv_size(), 0.5);
      for (size_t t = 0; t < c.length; ++t) {
        qkv[c.query(0, 0, t)] = 1e30;  // the product overflows fp32
        qkv[c.key(0, 0, t)] = key < 0 || t == kAt ? key : 0.0;
      }
      const AttentionRun run(c, dtype, qkv, std::vector<double>(c.out_size(), 1.0));
      const std::vector<double> out = values_of(run.out), lse = values_of(run.lse), d_qkv = values_of(run.d_qkv);
      for (size_t t = 0; t < c.length; ++t) {
        EXPECT_FALSE(std::isfinite(lse[t])) << t;
        for (size_t d = 0; d < c.dim; ++d) {
          EXPECT_TRUE(std::isnan(out[c.out(0, 0, t) + d])) << t << ", " << d;
          EXPECT_TRUE(std::isnan(d_qkv[c.query(0, 0, t) + d])) << t << ", " << d;
        }
      }
    }
  }
}

TEST(Attention, AGradientBeyondTheRangeOfFp16IsNotFinite) {
  // Both keys have probability 1/2; d_scores are +-1.28e6, d_q is 2.56e6.
  const AttentionCase c{1, 2, 1, 1, 8, 1.0, false};
  std::vector<double> qkv(c.qkv_size());
  for (size_t t = 0; t < c.length; ++t) {
    for (size_t d = 0; d < c.dim; ++d) {
      qkv[c.key(0, 0, t) + d] = t == 0 ? 1.0 : -1.0;
      qkv[c.value(0, 0, t) + d] = t == 0 ? 8.0 : -8.0;
    }
  }
  const AttentionRun run(c, DType::kF16, qkv, std::vector<double>(c.out_size(), 40000.0));
  const std::vector<double> d_qkv = values_of(run.d_qkv);
  for (size_t t = 0; t < c.length; ++t) {
    for (size_t d = 0; d < c.dim; ++d) EXPECT_FALSE(std::isfinite(d_qkv[c.query(0, 0, t) + d])) << t << ", " << d;
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const AttentionRun run({1, 2, 4, 2, 3, 1.0, true}, DType::kBF16);
  AttentionForwardArgs forward = run.forward_args();
  forward.shape.num_kv_heads = 3;
  expect_contract_error([&] { kernel_test::run(forward); },
                        "[attention_forward] num_heads must be a multiple of num_kv_heads, got 4 and 3");
  forward = run.forward_args();
  forward.lse = run.out;
  expect_contract_error([&] { kernel_test::run(forward); }, "[attention_forward] lse must be fp32, got bf16");
  AttentionBackwardArgs backward = run.backward_args();
  backward.d_qkv = run.out;
  expect_contract_error([&] { kernel_test::run(backward); }, "[attention_backward] d_qkv must have shape");
}

}  // namespace
}  // namespace mantissa::kernel_test
