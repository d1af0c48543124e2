// The findings of a step, and the decision about its update.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/reduction/update_decision.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"

namespace mantissa::kernel_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// NaN equals NaN.
void expect_same(double actual, double expected, const char* what) {
  EXPECT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected)))
      << what << ": expected " << expected << ", got " << actual;
}

// ---- record_verdict.

constexpr float kLarge = 0x1p54f;  // 2^54 + 1 is no double, but small terms count wherever they come

// Overwrites earlier contents of the record.
VerdictRecord record_of(const std::vector<float>& losses, const std::vector<TensorStats>& buckets,
                        int32_t stop_request = 0, const Tensor& state_faults = {}) {
  const size_t bytes = buckets.size() * sizeof(TensorStats);
  const Tensor stats(device_under_test().guarded_storage(bytes), DType::kU8, {static_cast<int64_t>(bytes)});
  write_bytes(stats, buckets.data());
  VerdictRecord before;
  before.first_bad = 0;
  before.nan_count = 2;
  before.inf_count = 3;
  before.loss_rank = before.stop_rank = 7;
  before.loss.add(9.0);
  before.squares.add(5.5);
  before.stop_request = 4;
  before.state_fault = 9;
  const Tensor record = make_record(before);
  const Tensor plan = make_record(UpdatePlan{.stop_request = stop_request});
  run(RecordVerdictArgs{.losses = make_elements(losses),
                        .stats = stats,
                        .plan = plan,
                        .record = record,
                        .state_faults = state_faults,
                        .rank = 3});
  return fetch_record<VerdictRecord>(record);
}

double loss_of(const std::vector<float>& losses) {
  const TensorStats stats{.first_bad = 17, .nan_count = 4, .inf_count = 1, .sum_squares = 2.25};
  const VerdictRecord record = record_of(losses, {stats});
  EXPECT_EQ(record.squares.value(), 2.25);
  EXPECT_EQ(record.first_bad, 17);
  EXPECT_EQ(record.nan_count, 4);
  EXPECT_EQ(record.inf_count, 1);
  EXPECT_EQ(record.loss_rank, std::isfinite(record.loss.value()) ? -1 : 3);
  return record.loss.value();
}

TEST(RecordVerdict, AddsLossesExactly) {
  device_under_test().on_each_variant([] {
    EXPECT_EQ(loss_of({0.25f}), 0.25);
    EXPECT_EQ(loss_of({1e8f, 1.0f, -0.5f}), 100000000.5);
    EXPECT_EQ(loss_of({1.0f, 1.0f, 1.0f, 1.0f, kLarge}), 0x1p54 + 4.0);
    EXPECT_EQ(loss_of({kLarge, 1.0f, 1.0f, 1.0f, 1.0f}), 0x1p54 + 4.0);
    EXPECT_EQ(loss_of({kLarge, 0x1p-100f, -kLarge}), 0x1p-100);
    std::vector<float> many(1001, 0.125f);
    many.back() = 3.0f;
    EXPECT_EQ(loss_of(many), 128.0);
  });
}

TEST(RecordVerdict, AddsTheStatisticsOfUnitsExactly) {
  device_under_test().on_each_variant([] {
    const TensorStats one{.sum_squares = 1.0}, large{.sum_squares = kLarge};
    EXPECT_EQ(record_of({1.0f}, {one}).squares.value(), 1.0);
    EXPECT_EQ(record_of({1.0f}, {one, one, one, one, large}).squares.value(), 0x1p54 + 4.0);
    EXPECT_EQ(record_of({1.0f}, {large, one, one, one, one}).squares.value(), 0x1p54 + 4.0);
    for (const size_t first : {0u, 1u, 300u}) {
      std::vector<TensorStats> buckets(301, {.sum_squares = 0.25});
      buckets[0] = {.first_bad = 900, .nan_count = 1, .sum_squares = HUGE_VAL};
      buckets[300] = {.first_bad = 901, .inf_count = 2, .sum_squares = HUGE_VAL};
      buckets[first].first_bad = 20;
      buckets[first].nan_count = 5;
      buckets[first].inf_count = 7;
      const VerdictRecord record = record_of({1.5f}, buckets);
      EXPECT_EQ(record.first_bad, 20);
      EXPECT_EQ(record.nan_count, first == 0 ? 5 : 6);
      EXPECT_EQ(record.inf_count, first == 300 ? 7 : 9);
      EXPECT_EQ(record.squares.value(), HUGE_VAL);
      EXPECT_EQ(record.loss.value(), 1.5);
    }
  });
}

TEST(RecordVerdict, TakesTheStopRequestOfThePlan) {
  device_under_test().on_each_variant([] {
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}).stop_request, 0);
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}).stop_rank, -1);
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}, 1001).stop_request, 1001);
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}, 1001).stop_rank, 3);
  });
}

TEST(RecordVerdict, TakesTheFaultsOfTheState) {
  device_under_test().on_each_variant([] {
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}, 0, make_indices({1})).state_fault, 1);
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}, 0, make_indices({0})).state_fault, 0);
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}).state_fault, 0);
  });
}

TEST(RecordVerdict, KeepsWhatIsNotFiniteAndDoesNotOverflow) {
  device_under_test().on_each_variant([] {
    EXPECT_EQ(loss_of({1.0f, kInf, 2.0f}), HUGE_VAL);
    EXPECT_EQ(loss_of({1.0f, -kInf, 2.0f}), -HUGE_VAL);
    EXPECT_TRUE(std::isnan(loss_of({1.0f, NAN})));
    EXPECT_TRUE(std::isnan(loss_of({kInf, -kInf})));
    EXPECT_EQ(loss_of({3e38f, 3e38f}), 2.0 * 3e38f);
  });
}

// ---- decide_update.

constexpr UpdatePlan kPlan{.step = 41,
                           .unscale = 0.25,
                           .clip_threshold = 1.0,
                           .learning_rate = 3e-4f,
                           .bias_correction1 = 0.19f,
                           .bias_correction2 = 0.002f,
                           .update = 38};

struct Case {
  const char* name;
  std::vector<VerdictRecord> records;  // of all ranks
  UpdatePlan plan = kPlan;
  int32_t hold = 0;
  StepOutcome outcome = StepOutcome::kClean;
  int32_t loss_rank = -1;
  int64_t first_bad = TensorStats::kNone;
};

VerdictRecord record_with(const TensorStats& stats, double loss) {
  VerdictRecord record;
  record.add(stats);
  record.loss.add(loss);
  return record;
}

VerdictRecord clean(double sum_squares, double loss) { return record_with({.sum_squares = sum_squares}, loss); }

VerdictRecord bad(int64_t first, int64_t nans, int64_t infinities, double loss = 1.0) {
  return record_with(
      {.first_bad = first, .nan_count = nans, .inf_count = infinities, .sum_squares = nans > 0 ? kNan : HUGE_VAL},
      loss);
}

VerdictRecord faulty_state() {
  VerdictRecord record = clean(1.0, 1.0);
  record.state_fault = 1;
  return record;
}

UpdatePlan plan_with(double unscale, double clip_threshold) {
  UpdatePlan plan = kPlan;
  plan.unscale = unscale;
  plan.clip_threshold = clip_threshold;
  return plan;
}

UpdatePlan limited(double loss_limit, double norm_limit) {
  UpdatePlan plan = kPlan;
  plan.loss_limit = loss_limit;
  plan.norm_limit = norm_limit;
  return plan;
}

using enum StepOutcome;

const Case kCases[] = {
    {.name = "one rank, clipped", .records = {clean(400.0, 7.0)}},
    {.name = "three ranks, not clipped", .records = {clean(1.0, 1.5), clean(0.5, 2.5), clean(0.25, 4.0)}},
    // The unscaled norm is rounded: 1/3 has no finite expansion.
    {.name = "an unscaling that is not exact", .records = {clean(2.0, 1.0)}, .plan = plan_with(1.0 / 3.0, 1.0)},
    {.name = "no clipping", .records = {clean(1e6, 1.0)}, .plan = plan_with(1.0, HUGE_VAL)},
    {.name = "gradient of zero", .records = {clean(0.0, 1.0), clean(0.0, 1.0)}},
    {.name = "held", .records = {clean(1.0, 1.0), clean(1.0, 1.0)}, .hold = 1},
    {.name = "Inf on the last rank",
     .records = {clean(1.0, 1.0), clean(1.0, 1.0), bad(30, 0, 2)},
     .outcome = kGradientOverflow,
     .first_bad = 30},
    {.name = "NaN and Inf, the first by index",
     .records = {bad(90, 1, 0), bad(12, 0, 1), bad(40, 3, 4)},
     .outcome = kGradientOverflow,
     .first_bad = 12},
    {.name = "overflow while held", .records = {bad(5, 1, 0)}, .hold = 1, .outcome = kGradientOverflow, .first_bad = 5},
    {.name = "the unscaled norm overflows",
     .records = {clean(1e300, 1.0), clean(1e300, 1.0)},
     .plan = plan_with(1e300, 1.0),
     .outcome = kGradientOverflow},
    {.name = "the sum of squares overflows",
     .records = {clean(1.5e308, 1.0), clean(1.5e308, 1.0)},
     .outcome = kGradientOverflow},
    {.name = "NaN loss, second rank",
     .records = {clean(1.0, 1.0), clean(1.0, kNan), clean(1.0, HUGE_VAL)},
     .outcome = kLossFault,
     .loss_rank = 1},
    {.name = "Inf loss before NaN gradients",
     .records = {bad(3, 1, 0), bad(2, 1, 0, -HUGE_VAL)},
     .outcome = kLossFault,
     .loss_rank = 1,
     .first_bad = 2},
    {.name = "a loss above its limit",
     .records = {clean(1.0, 3.0), clean(1.0, 4.5)},
     .plan = limited(7.0, 10.0),
     .outcome = kSpike},
    // |g| = sqrt(400) * 0.25 = 5.
    {.name = "a norm above its limit", .records = {clean(400.0, 7.0)}, .plan = limited(7.0, 4.9), .outcome = kSpike},
    {.name = "both at their limits", .records = {clean(400.0, 7.0)}, .plan = limited(7.0, 5.0)},
    {.name = "a NaN loss is a fault before it is a spike",
     .records = {clean(400.0, kNan)},
     .plan = limited(7.0, 4.9),
     .outcome = kLossFault,
     .loss_rank = 0},
    {.name = "an overflow is one before it is a spike",
     .records = {bad(12, 0, 1)},
     .plan = limited(0.5, 1.0),
     .outcome = kGradientOverflow,
     .first_bad = 12},
    {.name = "a faulty state, which explains all else",
     .records = {clean(1.0, kNan), faulty_state(), bad(2, 1, 0)},
     .outcome = kStateFault,
     .loss_rank = 0,
     .first_bad = 2},
    {.name = "a loss beyond the range of exact sums",
     .records = {clean(1.0, 1.0), clean(1.0, 1.5e308)},
     .outcome = kLossFault,
     .loss_rank = 1}};

// The records of a case, by rank.
std::vector<VerdictRecord> records_of(const Case& c) {
  std::vector<VerdictRecord> records = c.records;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    complete_record(records[rank], static_cast<int32_t>(rank), 0, records[rank].state_fault);
  }
  return records;
}

// A GPU's compiler may fuse the two roundings of norm + 1e-6. This moves the sum by at most one step of double, 2^-52
// of it. The quotient is rounded once more.
constexpr double kClipTolerance = 0x1.8p-52;
// The product with that factor in double, then rounded to fp32: at worst to the other neighbour.
constexpr double kMultiplierTolerance = 0x1p-23;

void expect_same_decision(const UpdateDecision& actual, const UpdateDecision& expected) {
  EXPECT_EQ(actual.step, expected.step);
  expect_same(actual.verdict.loss_sum, expected.verdict.loss_sum, "loss_sum");
  EXPECT_EQ(actual.verdict.state_finite, expected.verdict.state_finite);
  EXPECT_EQ(actual.verdict.loss_finite, expected.verdict.loss_finite);
  EXPECT_EQ(actual.verdict.loss_rank, expected.verdict.loss_rank);
  EXPECT_EQ(actual.verdict.gradients_finite, expected.verdict.gradients_finite);
  EXPECT_EQ(actual.verdict.found_nan, expected.verdict.found_nan);
  EXPECT_EQ(actual.verdict.first_bad, expected.verdict.first_bad);
  expect_same(actual.verdict.sum_squares, expected.verdict.sum_squares, "sum_squares");
  EXPECT_EQ(actual.outcome, expected.outcome);
  expect_same(actual.grad_norm, expected.grad_norm, "grad_norm");
  EXPECT_NEAR(actual.clip_factor, expected.clip_factor, kClipTolerance * expected.clip_factor);
  EXPECT_EQ(actual.held, expected.held);
}

TEST(DecideUpdate, AgreesWithTheHostInEveryCase) {
  device_under_test().on_each_variant([] {
    for (const Case& c : kCases) {
      SCOPED_TRACE(c.name);
      const std::vector<VerdictRecord> by_rank = records_of(c);
      const auto ranks = std::ssize(by_rank);
      const size_t bytes = by_rank.size() * sizeof(VerdictRecord);
      const Tensor records(device_under_test().guarded_storage(bytes), DType::kU8, {static_cast<int64_t>(bytes)});
      write_bytes(records, by_rank.data());
      const Tensor plan = make_record(c.plan), hold = make_indices({c.hold});
      const Tensor control = make_record(UpdateControl{.apply = 77}), decision = make_record(UpdateDecision());
      const std::vector<std::byte> records_before = bytes_of(records), plan_before = bytes_of(plan);
      run(DecideUpdateArgs{.records = records, .plan = plan, .hold = hold, .control = control, .decision = decision});

      const auto decided = fetch_record<UpdateDecision>(decision);
      EXPECT_EQ(decided.outcome, c.outcome);
      EXPECT_EQ(decided.verdict.loss_rank, c.loss_rank);
      EXPECT_EQ(decided.verdict.first_bad, c.first_bad);
      EXPECT_EQ(decided.held, c.hold != 0);
      const UpdateDecision expected = mantissa::decide_update(fold_records(by_rank.data(), ranks), c.plan, c.hold != 0);
      expect_same_decision(decided, expected);

      const bool applied = c.outcome == StepOutcome::kClean && c.hold == 0;
      const UpdateControl control_expected = control_of(expected, c.plan);
      const auto controlled = fetch_record<UpdateControl>(control);
      EXPECT_EQ(controlled.apply, applied ? 1 : 0);
      if (applied) {
        EXPECT_NEAR(controlled.gradient_multiplier, control_expected.gradient_multiplier,
                    kMultiplierTolerance * control_expected.gradient_multiplier);
      }
      EXPECT_EQ(controlled.learning_rate, c.plan.learning_rate);
      EXPECT_EQ(controlled.bias_correction1, c.plan.bias_correction1);
      EXPECT_EQ(controlled.bias_correction2, c.plan.bias_correction2);
      EXPECT_EQ(controlled.update, c.plan.update);
      EXPECT_EQ(elements_of<int32_t>(hold)[0], applied ? 0 : 1);
      EXPECT_TRUE(bytes_of(records) == records_before && bytes_of(plan) == plan_before) << "an input was written";
    }
  });
}

// Any grouping of the ranks' records folds to the same bits.
TEST(FoldVerdicts, DependsNeitherOnOrderNorOnGroups) {
  device_under_test().on_each_variant([] {
    std::vector<VerdictRecord> records;
    for (int rank = 0; rank < 13; ++rank) {
      VerdictRecord record = clean(std::ldexp(1.0 + rank / 3.0, 17 * rank - 90), std::ldexp(1.7, 3 * rank));
      if (rank == 5) record.add({.first_bad = 9, .nan_count = 2, .sum_squares = 1.0});
      if (rank == 8) record.add({.first_bad = 4, .inf_count = 1, .sum_squares = 1.0});
      complete_record(record, rank, rank > 6 ? 100 + rank : 0, rank == 11 ? 1 : 0);
      records.push_back(record);
    }
    const auto fold = [](const std::vector<VerdictRecord>& some) {
      const size_t bytes = some.size() * sizeof(VerdictRecord);
      const Tensor all(device_under_test().guarded_storage(bytes), DType::kU8, {static_cast<int64_t>(bytes)});
      write_bytes(all, some.data());
      const Tensor record = make_record(clean(3.0, 3.0));
      run(FoldVerdictsArgs{.records = all, .record = record});
      return fetch_record<VerdictRecord>(record);
    };
    const VerdictRecord whole = fold(records);
    EXPECT_EQ(whole.stop_rank, 7);
    EXPECT_EQ(whole.stop_request, 107);
    EXPECT_EQ(whole.first_bad, 4);
    EXPECT_EQ(whole.state_fault, 1);
    for (const size_t group : {1u, 2u, 4u, 5u, 13u}) {
      std::vector<VerdictRecord> sums;
      for (size_t begin = 0; begin < records.size(); begin += group) {
        const size_t end = std::min(records.size(), begin + group);
        sums.push_back(
            fold({records.begin() + static_cast<int64_t>(begin), records.begin() + static_cast<int64_t>(end)}));
      }
      std::ranges::reverse(sums);
      const VerdictRecord again = fold(sums);
      EXPECT_EQ(std::memcmp(&again, &whole, sizeof(whole)), 0) << "in groups of " << group;
    }
  });
}

TEST(DecideUpdate, ClipsToTheThreshold) {
  // |g| = sqrt(400) * 0.25 = 5, threshold 1: 1 / (5 + 1e-6).
  const Tensor decision = make_record(UpdateDecision()), control = make_record(UpdateControl());
  run(DecideUpdateArgs{.records = make_record(clean(400.0, 7.0)),
                       .plan = make_record(kPlan),
                       .hold = make_indices({0}),
                       .control = control,
                       .decision = decision});
  EXPECT_EQ(fetch_record<UpdateDecision>(decision).grad_norm, 5.0);
  EXPECT_NEAR(fetch_record<UpdateDecision>(decision).clip_factor, 1.0 / 5.000001, 1e-15);
  EXPECT_NEAR(fetch_record<UpdateControl>(control).gradient_multiplier, 0.25 / 5.000001, 1e-8);
}

TEST(DecideUpdate, NamesWhatIsWrong) {
  const auto call = [](const Tensor& records, const Tensor& hold) {
    return [=] {
      run(DecideUpdateArgs{.records = records,
                           .plan = make_record(kPlan),
                           .hold = hold,
                           .control = make_record(UpdateControl()),
                           .decision = make_record(UpdateDecision())});
    };
  };
  expect_contract_error(call(make_unwritten(DType::kU8, {47}), make_indices({0})),
                        fmt::format("[decide_update] records must hold whole records of {} bytes, at least one, got 47 "
                                    "bytes",
                                    sizeof(VerdictRecord)));
  expect_contract_error(call(make_record(VerdictRecord()), make_indices({0, 0})), "[decide_update] hold");
  const auto record = [](const Tensor& losses, const Tensor& stats) {
    return [=] {
      run(RecordVerdictArgs{
          .losses = losses, .stats = stats, .plan = make_record(UpdatePlan()), .record = make_record(VerdictRecord())});
    };
  };
  const Tensor losses = make_elements(std::vector<float>{1.0f});
  expect_contract_error(record(make_indices({1}), make_record(TensorStats())), "[record_verdict] losses");
  expect_contract_error(record(losses, make_unwritten(DType::kU8, {33})),
                        "[record_verdict] stats must hold whole records of 32 bytes, at least one, got 33 bytes");
}

}  // namespace
}  // namespace mantissa::kernel_test
