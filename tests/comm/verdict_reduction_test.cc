// The exchanges at the end of a step: verdicts and amaxes.
#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "comm/local/local_communicator.h"
#include "comm/verdict_reduction.h"
#include "core/kernels/quantize/args.h"
#include "core/tensor/philox.h"
#include "tests/comm/training_rank.h"
#include "tests/testing/precisions.h"

namespace mantissa {
namespace {

using testing::toy_gradient;
using testing::TrainingRank;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Outcome {
  Verdict verdict;
  std::optional<Offender> offender;
};

// Reduces the gradients on `ranks` threads, which must all agree on the outcome.
Outcome outcome_of(
    int ranks, const ReducerConfig& config, const testing::GradientFunction& gradient,
    const std::function<float(int)>& loss = [](int) { return 1.0f; }) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& communicator) {
    TrainingRank rank(communicator, config);
    VerdictReduction verdicts(communicator, *rank.backend, *rank.stream);
    Outcome& mine = outcomes[static_cast<size_t>(communicator.rank())];
    for (int round = 0; round < 2; ++round) {  // the second must not include results of the first
      rank.reduce(gradient);
      mine.verdict = rank.verdict_of(verdicts, loss(communicator.rank()));
      if (!mine.verdict.gradients_finite) {
        mine.offender = verdicts.find_offender(mine.verdict, *rank.reducer, *rank.buckets);
      }
    }
  });
  for (const Outcome& other : outcomes) {
    EXPECT_EQ(std::bit_cast<uint64_t>(other.verdict.sum_squares),
              std::bit_cast<uint64_t>(outcomes[0].verdict.sum_squares));
    EXPECT_EQ(other.verdict.gradients_finite, outcomes[0].verdict.gradients_finite);
    EXPECT_EQ(other.verdict.found_nan, outcomes[0].verdict.found_nan);
    EXPECT_EQ(other.verdict.first_bad, outcomes[0].verdict.first_bad);
    EXPECT_EQ(other.verdict.loss_finite, outcomes[0].verdict.loss_finite);
    EXPECT_EQ(other.offender.has_value(), outcomes[0].offender.has_value());
    if (other.offender && outcomes[0].offender) {
      EXPECT_EQ(other.offender->parameter, outcomes[0].offender->parameter);
      EXPECT_EQ(other.offender->element, outcomes[0].offender->element);
      EXPECT_EQ(other.offender->rank, outcomes[0].offender->rank);
      EXPECT_EQ(other.offender->is_nan, outcomes[0].offender->is_nan);
    }
  }
  return outcomes[0];
}

// Toy gradients with a value replaced on one rank.
testing::GradientFunction poisoned(int rank, int parameter, int64_t element, float value) {
  return [=](int r, int p, int64_t e) {
    return r == rank && p == parameter && e == element ? value : toy_gradient(r, p, e);
  };
}

void expect_offender(const Outcome& outcome, int parameter, int64_t element, int rank, bool is_nan = false) {
  ASSERT_FALSE(outcome.verdict.gradients_finite);
  ASSERT_TRUE(outcome.offender.has_value());
  EXPECT_EQ(outcome.offender->parameter, parameter);
  EXPECT_EQ(outcome.offender->element, element);
  EXPECT_EQ(outcome.offender->rank, rank);
  EXPECT_EQ(outcome.offender->is_nan, is_nan);
}

class VerdictTest : public ::testing::TestWithParam<int> {};

TEST_P(VerdictTest, NormIsThatOfTheSumWhicheverModeHoldsIt) {
  const int ranks = GetParam();
  ParameterSet parameters;
  testing::add_toy_parameters(parameters);
  double expected = 0.0;
  for (int parameter = 0; parameter < parameters.size(); ++parameter) {
    for (int64_t element = 0; element < parameters[parameter].numel(); ++element) {
      const float sum = testing::tree_sum(0, ranks, [&](int rank) { return toy_gradient(rank, parameter, element); });
      expected += static_cast<double>(sum) * static_cast<double>(sum);
    }
  }
  const auto verdict_of = [&](Sharding sharding) {
    return outcome_of(ranks, {.wire = DType::kF32, .sharding = sharding}, toy_gradient).verdict;
  };
  const Verdict sharded = verdict_of(Sharding::kSharded), replicated = verdict_of(Sharding::kReplicated);
  EXPECT_TRUE(sharded.finite());
  EXPECT_EQ(sharded.first_bad, INT64_MAX);
  // Both add about 2^14 positive doubles in different orders: a relative error of at most 2^14 * 2^-53 each.
  EXPECT_NEAR(sharded.sum_squares, expected, expected * 0x1p-38);
  EXPECT_EQ(sharded.sum_squares, replicated.sum_squares);
}

TEST_P(VerdictTest, LossesAreSummed) {
  const int ranks = GetParam();
  const auto loss = [](int rank) { return 0.5f + static_cast<float>(rank); };
  const Verdict verdict = outcome_of(ranks, {}, toy_gradient, loss).verdict;
  EXPECT_EQ(verdict.loss_sum, 0.5 * ranks * ranks);
  EXPECT_TRUE(verdict.loss_finite);
  EXPECT_EQ(verdict.loss_rank, -1);
}

TEST_P(VerdictTest, ALossThatIsNotFiniteNamesItsFirstRank) {
  const int ranks = GetParam();
  for (const float bad : {kInf, -kInf, kNan}) {
    const int first = ranks > 2 ? 1 : 0;
    const auto loss = [&](int rank) { return rank >= first ? bad : 1.0f; };
    const Verdict verdict = outcome_of(ranks, {}, toy_gradient, loss).verdict;
    EXPECT_FALSE(verdict.finite());
    EXPECT_FALSE(verdict.loss_finite);
    EXPECT_TRUE(verdict.gradients_finite);
    EXPECT_EQ(verdict.loss_rank, first);
  }
}

TEST_P(VerdictTest, OneBadElementIsFoundWithItsRankOnEveryWire) {
  const int ranks = GetParam();
  const int rank = ranks - 1;
  for (const DType wire : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      for (const float value : {kInf, -kInf, kNan}) {
        const Outcome outcome = outcome_of(ranks, {.wire = wire, .sharding = sharding},
                                           poisoned(rank, 6, 4287, value));  // its last element
        expect_offender(outcome, 6, 4287, rank, std::isnan(value));
        EXPECT_EQ(outcome.verdict.found_nan, std::isnan(value));
        EXPECT_TRUE(outcome.verdict.loss_finite);
      }
    }
  }
}

TEST_P(VerdictTest, TheFirstOffenderIsByParameterThenElementThenRank) {
  const int ranks = GetParam();
  const int last = ranks - 1;
  // Flat order is the reverse of parameter order. Parameter 8 is bad too, and is first in the buckets.
  const auto gradient = [&](int r, int p, int64_t e) {
    if (p == 8 && e == 0) return kInf;
    if (p == 3 && e == 70 && r == last) return kInf;
    if (p == 3 && e == 71) return kNan;
    return toy_gradient(r, p, e);
  };
  const Outcome outcome = outcome_of(ranks, {}, gradient);
  expect_offender(outcome, 3, 70, last);
  EXPECT_TRUE(outcome.verdict.found_nan);
  EXPECT_EQ(outcome.verdict.first_bad, 0);  // parameter 8 opens the first bucket
  expect_offender(outcome_of(ranks, {}, [](int r, int p, int64_t e) { return p == 4 ? kNan : toy_gradient(r, p, e); }),
                  4, 0, 0, true);
}

INSTANTIATE_TEST_SUITE_P(Ranks, VerdictTest, ::testing::Values(1, 2, 3, 4, 5));

TEST(Verdict, AnOverflowOfTheWireIsTheRanksThatSentIt) {
  // fp16 can hold 40,000, but each of two ranks sends twice its contribution, and it cannot hold 80,000.
  expect_offender(outcome_of(2, {.wire = DType::kF16}, poisoned(1, 5, 0, 40000.0f)), 5, 0, 1);
  expect_offender(outcome_of(2, {.wire = DType::kF16}, poisoned(0, 0, 6463, -70000.0f)), 0, 6463, 0);
  EXPECT_TRUE(outcome_of(2, {.wire = DType::kF16}, poisoned(1, 5, 0, 32000.0f)).verdict.finite());
  EXPECT_TRUE(outcome_of(2, {.wire = DType::kBF16}, poisoned(1, 5, 0, 40000.0f)).verdict.finite());
  EXPECT_TRUE(outcome_of(1, {.wire = DType::kF16}, poisoned(0, 5, 0, 1e6f)).verdict.finite());  // no wire
}

TEST(Verdict, AnOverflowOfTheSumAloneIsNobodys) {
  const auto all = [](float value) {
    return [=](int r, int p, int64_t e) { return p == 2 && e == 62 ? value : toy_gradient(r, p, e); };
  };
  // fp32: 2e38 + 2e38 is above 3.4e38.
  const Outcome fp32 = outcome_of(2, {.wire = DType::kF32}, all(2e38f));
  expect_offender(fp32, 2, 62, -1);
  EXPECT_FALSE(fp32.verdict.found_nan);
  // fp16 added on the wire, 3 ranks, scale 1: each 30,000 fits, their sum does not. With fp32 accumulation it does.
  expect_offender(outcome_of(3, {.wire = DType::kF16, .accumulation = Accumulation::kWire}, all(30000.0f)), 2, 62, -1);
  EXPECT_TRUE(outcome_of(3, {.wire = DType::kF16}, all(30000.0f)).verdict.finite());
  EXPECT_TRUE(outcome_of(3, {.wire = DType::kF16, .sharding = Sharding::kReplicated}, all(30000.0f)).verdict.finite());
}

TEST(Verdict, TheOffendersKindIsItsOwnNotTheVerdicts) {
  // Inf in an early parameter on one rank, NaN in a later parameter on the other, and vice versa.
  for (const DType wire : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool nan_first : {false, true}) {
      const auto gradient = [=](int r, int p, int64_t e) {
        if (r == 0 && p == 1 && e == 3) return nan_first ? kNan : kInf;
        if (r == 1 && p == 6 && e == 70) return nan_first ? kInf : kNan;
        return toy_gradient(r, p, e);
      };
      const Outcome outcome = outcome_of(2, {.wire = wire}, gradient);
      EXPECT_TRUE(outcome.verdict.found_nan);
      expect_offender(outcome, 1, 3, 0, nan_first);
    }
  }
  // The same within one parameter, and NaN elsewhere together with an overflow on the wire.
  const auto gradient = [](int r, int p, int64_t e) {
    if (r == 1 && p == 3 && e == 70) return 70000.0f;
    if (r == 1 && p == 3 && e == 71) return kNan;
    return toy_gradient(r, p, e);
  };
  expect_offender(outcome_of(2, {.wire = DType::kF16}, gradient), 3, 70, 1, false);
}

// Sums of finite contributions never give NaN, so the test writes NaN into a sum and makes up the verdict. The rank
// that holds the sum informs the others.
TEST(Verdict, TheKindOfABadSumIsThatOfTheSummedValue) {
  for (const bool nan_first : {false, true}) {
    for (const int holder : {0, 1}) {
      run_ranks(2, [&](Communicator& communicator) {
        TrainingRank rank(communicator, {.wire = DType::kF32});
        VerdictReduction verdicts(communicator, *rank.backend, *rank.stream);
        rank.reduce();
        const auto& bucket = rank.buckets->layout().buckets()[0];
        const int64_t first = holder * bucket.shard_numel;
        if (communicator.rank() == holder) {
          float* const sums = rank.reducer->result_shard(0).data<float>();
          sums[0] = nan_first ? kNan : kInf;
          sums[1] = nan_first ? kInf : kNan;
        }
        const Verdict verdict{.gradients_finite = false, .found_nan = true, .first_bad = first};
        const Offender offender = verdicts.find_offender(verdict, *rank.reducer, *rank.buckets);
        EXPECT_EQ(offender.rank, -1);
        EXPECT_EQ(offender.is_nan, nan_first);
        EXPECT_EQ(rank.buckets->layout().flat_index(offender.parameter, offender.element), first);
      });
    }
  }
}

TEST(Verdict, InfinitiesThatCancelAreNanButNamedByTheirRank) {
  const auto opposite = [](int r, int p, int64_t e) {
    if (p == 1 && e == 3) return r == 0 ? kInf : -kInf;
    return toy_gradient(r, p, e);
  };
  const Outcome outcome = outcome_of(2, {}, opposite);
  expect_offender(outcome, 1, 3, 0);       // Inf, as the rank sent it
  EXPECT_TRUE(outcome.verdict.found_nan);  // in the sum
}

TEST(Verdict, FoldAddsTheRecordsOfRanks) {
  VerdictRecord records[3];
  records[0].add({.first_bad = 90, .inf_count = 1, .sum_squares = 1.0});
  records[1].add({.first_bad = 40, .nan_count = 2, .sum_squares = 2.0});
  records[2].add({.sum_squares = 4.0});
  for (int rank = 0; rank < 3; ++rank) records[rank].loss.add(1 << rank);
  const Verdict verdict = verdict_of(fold_verdicts(records, 3));
  EXPECT_EQ(verdict.loss_sum, 7.0);
  EXPECT_EQ(verdict.first_bad, 40);
  EXPECT_EQ(verdict.sum_squares, 7.0);
  EXPECT_TRUE(verdict.found_nan);
  EXPECT_FALSE(verdict.gradients_finite);
  EXPECT_TRUE(verdict.loss_finite);
}

TEST(Verdict, TheFirstRankThatAsksToStopIsHeard) {
  VerdictRecord records[3];
  for (const auto& [rank, request] : {std::pair{0, 0}, {1, 12}, {2, 15}}) {
    records[rank].set_rank(rank, request, 0);
  }
  const Verdict verdict = verdict_of(fold_verdicts(records, 3));
  EXPECT_EQ(verdict.stop_request, 12);
  EXPECT_EQ(verdict.stop_rank, 1);
  EXPECT_EQ(verdict_of(fold_verdicts(records, 1)).stop_request, 0);
}

TEST(Verdict, AFiniteVerdictHasNoOffender) {
  run_ranks(1, [](Communicator& communicator) {
    TrainingRank rank(communicator, {});
    VerdictReduction verdicts(communicator, *rank.backend, *rank.stream);
    rank.reduce();
    const Verdict verdict = rank.verdict_of(verdicts, 0.0f);
    EXPECT_THROW(verdicts.find_offender(verdict, *rank.reducer, *rank.buckets), ContractError);
  });
}

// Ranks with different data get the same scales in every step.

constexpr int kSteps = 50;
constexpr int32_t kHistory = 4;

Precision delayed_precision() {
  Precision precision = testing::autocast(DType::kBF16);
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles)
      precision.linear.set(product, role, TensorFormat{Format::kE4M3, Scaling::kDelayed});
  }
  return precision;
}

// In some steps some ranks overflow.
float amax_of(int step, int rank, size_t tensor) {
  const uint32_t word =
      philox(7, {static_cast<uint32_t>(step), static_cast<uint32_t>(rank), static_cast<uint32_t>(tensor), 0})[0];
  if (word % 16 == 0) return INFINITY;
  return std::ldexp(1.0f + uniform01(word), static_cast<int>(word % 20) - 10);
}

class AmaxExchangeTest : public ::testing::TestWithParam<int> {};

TEST_P(AmaxExchangeTest, AllRanksHaveTheScalesOfTheLargestAmax) {
  const int ranks = GetParam();
  std::vector<std::vector<float>> scales(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& communicator) {
    testing::TrainingRank rank(communicator, {});
    const UniformPrecision policy(delayed_precision());
    DelayedScales state(rank.parameters, policy, {.history = kHistory}, *rank.backend, *rank.stream);
    AmaxExchange exchange(state, communicator, *rank.backend, *rank.stream);
    auto& mine = scales[static_cast<size_t>(communicator.rank())];
    std::vector<QuantizeRecord> records(static_cast<size_t>(state.records().numel()) / sizeof(QuantizeRecord));
    ASSERT_FALSE(records.empty());
    for (int step = 0; step < kSteps; ++step) {
      for (size_t t = 0; t < records.size(); ++t) {
        records[t].amax = std::bit_cast<uint32_t>(amax_of(step, communicator.rank(), t));
      }
      rank.backend->upload(records.data(), state.records(), *rank.stream);
      exchange.run({});
      const std::vector<float> now = state.state().scales;
      mine.insert(mine.end(), now.begin(), now.end());
    }
  });
  for (const auto& other : scales) EXPECT_EQ(other, scales[0]);

  // Scales of tensor 0, computed directly: the largest finite entry of the last four steps. A step in which any rank
  // overflows has no entry.
  const size_t tensors = scales[0].size() / kSteps;
  float expected = 1.0f;
  for (int step = 0; step < kSteps; ++step) {
    float largest = 0.0f;
    for (int s = std::max(0, step - kHistory + 1); s <= step; ++s) {
      float amax = 0.0f;
      for (int rank = 0; rank < ranks; ++rank) amax = std::max(amax, amax_of(s, rank, 0));
      if (std::isfinite(amax)) largest = std::max(largest, amax);
    }
    if (largest > 0.0f) expected = 448.0f / largest;
    EXPECT_EQ(scales[0][static_cast<size_t>(step) * tensors], expected) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AmaxExchangeTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace mantissa
