// The findings of a step, and the decision about its update.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels/reduction/update_decision.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

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

constexpr float kLarge = 0x1p54f;  // 2^54 + 1 is no double
constexpr int32_t kRank = 5;

Tensor make_stats(const std::vector<TensorStats>& stats) {
  const size_t bytes = stats.size() * sizeof(TensorStats);
  Tensor tensor(device_under_test().guarded_storage(bytes), DType::kU8, {static_cast<int64_t>(bytes)});
  write_bytes(tensor, stats.data());
  return tensor;
}

// Overwrites earlier contents of the record.
VerdictRecord record_of(const std::vector<float>& losses, const std::vector<TensorStats>& stats,
                        int32_t stop_request = 0, const Tensor& state_faults = {}) {
  VerdictRecord before{.first_bad = 0,
                       .nan_count = 2,
                       .inf_count = 3,
                       .loss_rank = 1,
                       .stop_request = 4,
                       .stop_rank = 1,
                       .state_fault = 9};
  before.loss.add(9.0);
  before.squares.add(NAN);
  const Tensor record = make_record(before), plan = make_record(UpdatePlan{.stop_request = stop_request});
  run(RecordVerdictArgs{.losses = make_elements(losses),
                        .stats = make_stats(stats),
                        .plan = plan,
                        .record = record,
                        .state_faults = state_faults,
                        .rank = kRank});
  return fetch_record<VerdictRecord>(record);
}

double loss_of(const std::vector<float>& losses) { return record_of(losses, {TensorStats()}).loss.value(); }

TEST(RecordVerdict, AddsLossesExactly) {
  device_under_test().on_each_variant([] {
    EXPECT_EQ(loss_of({0.25f}), 0.25);
    EXPECT_EQ(loss_of({1e8f, 1.0f, -0.5f}), 100000000.5);
    EXPECT_EQ(loss_of({1.0f, 1.0f, 1.0f, 1.0f, kLarge}), 0x1p54 + 4.0);
    EXPECT_EQ(loss_of({kLarge, 1.0f, 1.0f, 1.0f, 1.0f}), 0x1p54 + 4.0);
    EXPECT_EQ(loss_of({3e38f, 0x1p-149f, -3e38f}), 0x1p-149);
    std::vector<float> many(1001, 0.125f);
    many.back() = 3.0f;
    EXPECT_EQ(loss_of(many), 128.0);
  });
}

// All of the record, for more addends than a block has threads, with magnitudes of all squares of fp32 numbers.
TEST(RecordVerdict, AgreesWithTheHost) {
  device_under_test().on_each_variant([] {
    for (const size_t count : {1u, 2u, 255u, 256u, 257u, 700u}) {
      const std::vector<double> values = reference::random_values(static_cast<int64_t>(count), count, 0.5, 1.0),
                                exponents = reference::random_values(static_cast<int64_t>(count), 9, -290.0, 250.0);
      std::vector<TensorStats> stats(count);
      std::vector<float> losses(count);
      VerdictRecord expected{.nan_count = 0, .loss_rank = -1, .stop_request = 17, .stop_rank = kRank};
      for (size_t i = 0; i < count; ++i) {
        stats[i].sum_squares = std::ldexp(values[i], static_cast<int>(exponents[i]));
        losses[i] = static_cast<float>(std::ldexp(values[i] - 0.75, static_cast<int>(exponents[i] * 0.4)));
        if (i % 255 == 254) stats[i] = {.first_bad = 9000 - static_cast<int64_t>(i), .nan_count = 2, .inf_count = 1};
        expected.add(stats[i]);
        expected.loss.add(static_cast<double>(losses[i]));
      }
      EXPECT_TRUE(record_of(losses, stats, 17) == expected) << count;
    }
  });
}

TEST(RecordVerdict, TakesTheStopRequestOfThePlan) {
  device_under_test().on_each_variant([] {
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}).stop_request, 0);
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}).stop_rank, -1);
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}, 1001).stop_request, 1001);
    EXPECT_EQ(record_of({1.0f}, {TensorStats()}, 1001).stop_rank, kRank);
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
    EXPECT_EQ(record_of({1.0f, NAN}, {TensorStats()}).loss_rank, kRank);
    EXPECT_EQ(record_of({3e38f, 3e38f}, {TensorStats()}).loss_rank, -1);
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

VerdictRecord clean(double sum_squares, double loss) {
  VerdictRecord record;
  record.squares.add(sum_squares);
  record.loss.add(loss);
  return record;
}

VerdictRecord bad(int64_t first, int64_t nans, int64_t infinities, double loss = 1.0) {
  VerdictRecord record = clean(nans > 0 ? kNan : HUGE_VAL, loss);
  record.first_bad = first;
  record.nan_count = nans;
  record.inf_count = infinities;
  return record;
}

VerdictRecord faulty_state() {
  VerdictRecord record = clean(1.0, 1.0);
  record.state_fault = 1;
  return record;
}

Tensor make_records(const std::vector<VerdictRecord>& records) {
  const size_t bytes = records.size() * sizeof(VerdictRecord);
  Tensor tensor(device_under_test().guarded_storage(bytes), DType::kU8, {static_cast<int64_t>(bytes)});
  write_bytes(tensor, records.data());
  return tensor;
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
     .records = {clean(1e90, 1.0), clean(1e90, 1.0)},
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
    {.name = "a loss beyond the range of exact sums, which counts as infinite",
     .records = {clean(1.0, 1.0), clean(1.0, 1.5e308)},
     .outcome = kLossFault,
     .loss_rank = 1}};

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
      std::vector<VerdictRecord> of_ranks = c.records;
      for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
        of_ranks[rank].set_rank(static_cast<int32_t>(rank), 0, of_ranks[rank].state_fault);
      }
      std::reverse(of_ranks.begin(), of_ranks.end());
      const Tensor records = make_records(of_ranks);
      const Tensor plan = make_record(c.plan), hold = make_indices({c.hold}), count = make_indices({41});
      const Tensor control = make_record(UpdateControl{.apply = 77}), decision = make_record(UpdateDecision());
      const std::vector<std::byte> records_before = bytes_of(records), plan_before = bytes_of(plan);
      run(DecideUpdateArgs{
          .records = records, .plan = plan, .hold = hold, .control = control, .decision = decision, .applied = count});

      const auto decided = fetch_record<UpdateDecision>(decision);
      EXPECT_EQ(decided.outcome, c.outcome);
      EXPECT_EQ(decided.verdict.loss_rank, c.loss_rank);
      EXPECT_EQ(decided.verdict.first_bad, c.first_bad);
      EXPECT_EQ(decided.held, c.hold != 0);
      const UpdateDecision expected = mantissa::decide_update(
          fold_verdicts(of_ranks.data(), static_cast<int64_t>(of_ranks.size())), c.plan, c.hold != 0);
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
      EXPECT_EQ(elements_of<int32_t>(count)[0], applied ? 42 : 41);
      EXPECT_TRUE(bytes_of(records) == records_before && bytes_of(plan) == plan_before) << "an input was written";
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

// The fold of folds is that of all records, in any order; of more records than warps.
TEST(FoldVerdicts, AgreesWithTheHostInEveryOrder) {
  device_under_test().on_each_variant([] {
    for (const int count : {1, 2, 7, 8, 9, 40}) {
      std::vector<VerdictRecord> records;
      for (int rank = 0; rank < count; ++rank) {
        const double loss = std::ldexp(1.0 + rank, rank % 3 == 0 ? 60 : -60);
        VerdictRecord record =
            rank % 5 == 3 ? bad(70 - rank, rank, 2, rank == 8 ? kNan : loss) : clean(0.1 * rank, loss);
        record.set_rank(rank, rank % 4 == 2 ? 100 + rank : 0, rank == 13);
        records.push_back(record);
      }
      const auto fold = [](const std::vector<VerdictRecord>& parts) {
        const Tensor total = make_record(bad(3, 4, 5));
        run(FoldVerdictsArgs{.records = make_records(parts), .record = total});
        return fetch_record<VerdictRecord>(total);
      };
      const VerdictRecord expected = fold_verdicts(records.data(), count);
      EXPECT_TRUE(fold(records) == expected) << count;
      std::reverse(records.begin(), records.end());
      EXPECT_TRUE(fold(records) == expected) << count << " from the last one on";
      const auto middle = records.begin() + (count + 1) / 2;
      std::vector<VerdictRecord> halves{fold({records.begin(), middle})};
      if (middle != records.end()) halves.push_back(fold({middle, records.end()}));
      EXPECT_TRUE(fold(halves) == expected) << count << " in two parts";
      EXPECT_EQ(expected.stop_rank, count > 2 ? 2 : -1);
      EXPECT_EQ(expected.stop_request, count > 2 ? 102 : 0);
      EXPECT_EQ(expected.loss_rank, count > 8 ? 8 : -1);
      EXPECT_EQ(expected.state_fault, count > 13 ? 1 : 0);
    }
  });
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
                        "[decide_update] records must hold whole records of 408 bytes, at least one, got 47 bytes");
  expect_contract_error(call(make_record(VerdictRecord()), make_indices({0, 0})), "[decide_update] hold");
  const auto record = [](const Tensor& losses, const Tensor& stats) {
    return [=] {
      run(RecordVerdictArgs{
          .losses = losses, .stats = stats, .plan = make_record(UpdatePlan()), .record = make_record(VerdictRecord())});
    };
  };
  const Tensor losses = make_elements(std::vector<float>{1.0f});
  expect_contract_error(record(make_indices({1}), make_record(TensorStats())), "[record_verdict] losses");
  expect_contract_error(
      [] { run(FoldVerdictsArgs{.records = make_unwritten(DType::kU8, {7}), .record = make_record(VerdictRecord())}); },
      "[fold_verdicts] records must hold whole records of 408 bytes, at least one, got 7 bytes");
  expect_contract_error(
      [&] {
        run(RecordVerdictArgs{.losses = losses,
                              .stats = make_record(TensorStats()),
                              .plan = make_record(UpdatePlan()),
                              .record = make_record(VerdictRecord()),
                              .rank = -1});
      },
      "[record_verdict] rank must be at least 0, got -1");
  expect_contract_error(record(losses, make_unwritten(DType::kU8, {33})),
                        "[record_verdict] stats must hold whole records of 32 bytes, at least one, got 33 bytes");
}

}  // namespace
}  // namespace mantissa::kernel_test
