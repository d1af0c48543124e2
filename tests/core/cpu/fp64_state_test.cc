// The CPU's kernels in fp64 on gradients and optimizer state: AdamW, digests, sums over ranks and statistics.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/kernels/reduction/args.h"
#include "core/kernels/reduction/update_decision.h"
#include "tests/core/cpu/fp64_case.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/adamw.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test::fp64_state_test {
namespace {

using reference::random_values;

void expect_near(const Tensor& found, const Values& expected, const char* what) {
  expect_each_close(found, expected, 1e-14, what);
}

TEST(Fp64State, AdamWAsTheReferenceAndDigestsOfItsState) {
  constexpr int64_t kCount = 20000;  // more than a block
  const Values gradient = random_values(kCount, 1), master = random_values(kCount, 2),
               m = random_values(kCount, 3, -0.1, 0.1), v = random_values(kCount, 4, 0.0, 0.1);
  const UpdateControl control{.gradient_multiplier = 0.37,
                              .learning_rate = 3e-3,
                              .bias_correction1 = 0.271,
                              .bias_correction2 = 0.002997,
                              .update = 12};
  const AdamWArgs args{.gradient = fp64({kCount}, gradient),
                       .master = fp64({kCount}, master),
                       .m = fp64({kCount}, m),
                       .v = fp64({kCount}, v),
                       .weight = unwritten({kCount}),
                       .weight_decay = 0.1f,
                       .control = make_record(control),
                       .faults = make_indices({0}),
                       .digests = make_record(StateDigests())};
  const auto digest = [](const Tensor& x) {
    const Tensor record = make_record(Digest());
    run(DigestArgs{.x = x, .record = record});
    return fetch_record<Digest>(record);
  };
  const Digest before = digest(args.master);
  run(args);
  Values expected_w, expected_m, expected_v;
  const reference::AdamWStep step{static_cast<double>(0.9f),
                                  static_cast<double>(0.999f),
                                  static_cast<double>(1e-8f),
                                  static_cast<double>(0.1f),
                                  0.37,
                                  3e-3,
                                  0.271,
                                  0.002997};
  for (size_t i = 0; i < master.size(); ++i) {
    const auto next = reference::adamw({master[i], m[i], v[i]}, gradient[i], step);
    expected_w.push_back(next.w), expected_m.push_back(next.m), expected_v.push_back(next.v);
  }
  expect_near(args.master, expected_w, "master");
  expect_near(args.m, expected_m, "m");
  expect_near(args.v, expected_v, "v");
  EXPECT_EQ(bytes_of(args.weight), bytes_of(args.master));
  EXPECT_EQ(elements_of<int32_t>(args.faults)[0], 0);
  const auto digests = fetch_record<StateDigests>(args.digests);
  EXPECT_EQ(digests.read[StateDigests::kMaster], before);
  EXPECT_EQ(digests.next[StateDigests::kMaster], digest(args.master));
  EXPECT_NE(before, digest(args.master));

  AdamWArgs large = args;
  large.control = make_record(UpdateControl{.learning_rate = 1e300, .update = 13});
  run(large);
  EXPECT_EQ(elements_of<int32_t>(args.faults)[0], 1) << "beyond what any form of state can hold";
  const Values kept = values_of(args.master);
  large.control = make_record(UpdateControl{.apply = 0, .learning_rate = 1.0});
  run(large);
  EXPECT_EQ(values_of(args.master), kept);
}

// Every bit of an element counts, those of its lower half as well.
TEST(Fp64State, DigestsFindAnyFlippedBit) {
  Values values = random_values(700, 1);
  const auto digest = [&] {
    const Tensor record = make_record(Digest());
    run(DigestArgs{.x = fp64({700}, values), .record = record});
    return fetch_record<Digest>(record);
  };
  const Digest whole = digest();
  for (const int bit : {0, 31, 32, 63}) {
    const double original = values[555];
    values[555] = std::bit_cast<double>(std::bit_cast<uint64_t>(original) ^ (uint64_t{1} << bit));
    const ChangedTile changed = changed_tile(whole, digest(), 700);
    EXPECT_EQ(changed.begin, 512) << bit;
    EXPECT_EQ(changed.bit, bit % 32);
    values[555] = original;
  }
}

// Where x is fp32, a reference that was rounded to fp32 would show no error.
TEST(Fp64State, ComparesAnyDTypeWithAnFp64Reference) {
  constexpr int64_t kCount = 20000;
  const Values reference_values = random_values(kCount, 5);
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const Tensor x = make_tensor(dtype, {kCount}, reference_values), record = make_record(ErrorSums());
    run(CompareArgs{.x = x, .reference = fp64({kCount}, reference_values), .record = record});
    const ErrorSums sums = fetch_record<ErrorSums>(record);
    double expected = 0.0;
    const Values rounded = values_of(x);
    for (size_t i = 0; i < rounded.size(); ++i) expected += std::pow(rounded[i] - reference_values[i], 2);
    EXPECT_EQ(sums.elements, kCount);
    EXPECT_NEAR(sums.error_squares, expected, 1e-12 * expected) << name(dtype);
    EXPECT_EQ(sums.error_squares == 0.0, dtype == DType::kF64);
  }
}

TEST(Fp64State, SumsOfRanksAndTheirStatistics) {
  const Values rows = random_values(3 * 500, 1);
  Values expected(500);
  for (size_t i = 0; i < 500; ++i) expected[i] = rows[i] + rows[500 + i] + rows[1000 + i];
  const SumContributionsArgs args{.contributions = fp64({3, 500}, rows),
                                  .out = unwritten({500}),
                                  .record = make_record(TensorStats()),
                                  .index_offset = 10};
  run(args);
  EXPECT_EQ(values_of(args.out), expected) << "in rank order";
  double squares = 0.0;
  for (const double value : expected) squares += value * value;
  EXPECT_NEAR(fetch_record<TensorStats>(args.record).sum_squares, squares, 1e-13 * squares);

  expected[333] = std::numeric_limits<double>::quiet_NaN();
  expected[444] = std::numeric_limits<double>::infinity();
  const TensorStatsArgs bad{.x = fp64({500}, expected), .record = make_record(TensorStats()), .index_offset = 10};
  run(bad);
  const auto stats = fetch_record<TensorStats>(bad.record);
  EXPECT_EQ(stats.first_bad, 343);
  EXPECT_EQ(stats.nan_count, 1);
  EXPECT_EQ(stats.inf_count, 1);

  const RecordVerdictArgs verdict{.losses = fp64({2}, {0.1, 0.2}),
                                  .stats = bad.record,
                                  .plan = make_record(UpdatePlan()),
                                  .record = make_record(VerdictRecord())};
  run(verdict);
  EXPECT_EQ(fetch_record<VerdictRecord>(verdict.record).loss.value(), 0.1 + 0.2) << "not of 0.1f and 0.2f";
}

}  // namespace
}  // namespace mantissa::kernel_test::fp64_state_test
