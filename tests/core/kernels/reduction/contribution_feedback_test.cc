// Gradients as they are sent with error feedback: the residual takes part, and what rounding leaves becomes the next.
#include <gtest/gtest.h>

#include <array>

#include "tests/core/kernels/reduction/coded_contribution.h"

namespace mantissa::kernel_test {
namespace coded_contribution_test {

constexpr DType kWires[] = {DType::kE4M3, DType::kE5M2, DType::kBF16, DType::kF16};

struct Residuals {
  std::array<Tensor, 2> tensors{};
  float unit = 4.0f;

  void give_to(RoundContributionArgs& args, int applied) const {
    args.residuals = tensors;
    args.applied = make_indices({applied});
    args.unit = make_elements(std::vector{unit});
  }
};

// Values for residuals: normal numbers, zeros, and a number with which its sum is Inf.
std::vector<float> residual_values(int64_t n) {
  std::vector<float> values;
  for (const double v : random_values(n, 23)) values.push_back(static_cast<float>(v) * 0.03f);
  for (size_t i = 0; i < values.size(); i += 7) values[i] = 0.0f;
  if (n > 14 * 32) values[13 * 32 + 5] = 3e38f;
  return values;
}

// The residual counts as part of the gradient, and the rounding error replaces the other residual. The call may be
// repeated, and writes nothing else.
void check_feedback(DType wire, int64_t n, bool stochastic, int applied) {
  std::vector<float> values = awkward_values(std::max<int64_t>(n, 13 * 32));
  values.resize(static_cast<size_t>(n));
  const std::vector<float> old = residual_values(n);
  Residuals residuals;
  const auto turn = static_cast<size_t>(applied % 2);
  residuals.tensors[turn] = make_elements(old);
  const Tensor next = residuals.tensors[1 - turn] = make_unwritten(DType::kF32, {n});
  const DType dtype = is_coded(wire) ? DType::kF32 : wire;
  const Tensor src = make_elements(values), dst = make_unwritten(dtype, {n}), again = make_unwritten(dtype, {n});
  RoundContributionArgs args = rounding_of(wire, src, dst, stochastic);
  residuals.give_to(args, applied);
  run(args);
  const std::vector<std::byte> first = bytes_of(next);
  args.dst = again;
  run(args);
  ASSERT_TRUE(bytes_of(again) == bytes_of(dst) && bytes_of(next) == first);
  ASSERT_TRUE(bytes_of(src) == bytes_of(make_elements(values))) << "the gradient was written";
  ASSERT_TRUE(bytes_of(residuals.tensors[turn]) == bytes_of(make_elements(old))) << "the residual in use was written";

  std::vector<float> sums(values);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = 2.0f * values[i] + 8.0f * old[i];
  const Tensor plain = make_unwritten(dtype, {n});
  RoundContributionArgs of_sums = rounding_of(wire, make_elements(sums), plain, stochastic);
  of_sums.scale = 1.0f;
  if (is_coded(wire) || stochastic) {
    run(of_sums);
  } else {
    run(CastArgs{.src = of_sums.src, .dst = plain});
  }
  const std::vector<double> sent = values_of(dst), expected = values_of(plain), left = values_of(next);
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_TRUE(std::isnan(expected[i]) ? std::isnan(sent[i]) : sent[i] == expected[i]) << i;
    const double error = (static_cast<double>(sums[i]) - expected[i]) / 8.0;
    ASSERT_EQ(left[i], std::isfinite(error) ? static_cast<double>(static_cast<float>(error)) : 0.0) << i;
  }
  if (!is_coded(wire)) return;
  const Sent rows{.numel = n};
  args.dst = rows.rows(wire);
  args.first = rows.first;
  run(args);
  of_sums.dst = rows.rows(wire);
  of_sums.first = rows.first;
  run(of_sums);
  ASSERT_TRUE(bytes_of(next) == first);
  const std::vector<std::byte> codes = bytes_of(args.dst), codes_of_sums = bytes_of(of_sums.dst);
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(rows.code(codes, i), rows.code(codes_of_sums, i)) << i;
    ASSERT_EQ(rows.scale(codes, i), rows.scale(codes_of_sums, i)) << i;
  }
}

TEST(RoundContribution, FeedbackRoundsTheSumWithTheResidualAndKeepsTheRest) {
  device_under_test().on_each_variant([] {
    for (const DType wire : kWires) {
      for (const Placement placement : kPlacements) {
        if (is_coded(wire) && placement != Placement::kAligned) continue;
        const PlacementScope scope(placement);
        for (const int64_t n : {32, 67, 16416}) {
          for (const bool stochastic : {false, true}) {
            if (is_coded(wire) && n % 32 != 0) continue;
            SCOPED_TRACE(::testing::Message() << name(wire) << " x " << n << (stochastic ? " stochastic" : ""));
            for (const int applied : {0, 1, 6}) check_feedback(wire, n, stochastic, applied);
          }
        }
      }
    }
  });
}

// Rounding to nearest gives the same gradient the same error each time. With feedback the sum of the rounded values and
// the sum of the gradients differ by the last residual alone: the mean tends to the gradient as 1 / steps.
TEST(RoundContribution, FeedbackTakesTheBiasFromRoundingToNearest) {
  constexpr int64_t kNumel = 4096;
  constexpr int kSteps = 100;
  const PlacementScope scope(Placement::kAligned);
  const std::vector<double> values = random_values(kNumel, 13);
  for (const DType wire : kWires) {
    for (const bool stochastic : {false, true}) {
      const Tensor src = make_tensor(DType::kF32, {kNumel}, values);
      const Tensor dst = make_unwritten(is_coded(wire) ? DType::kF32 : wire, {kNumel});
      const std::vector<double> exact = values_of(src);
      Residuals residuals;
      for (Tensor& tensor : residuals.tensors) tensor = make_elements(std::vector<float>(kNumel));
      std::vector<double> sums(kNumel);
      double first_squares = 0.0, last_squares = 0.0, largest = 0.0;
      for (const double value : exact) largest = std::max(largest, std::abs(value));
      for (int step = 0; step < kSteps; ++step) {
        RoundContributionArgs args = rounding_of(wire, src, dst, stochastic);
        if (stochastic) args.step = make_indices({step});
        args.scale = 1.0f;
        residuals.give_to(args, step);
        run(args);
        const std::vector<double> sent = values_of(dst);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += sent[i];
        for (size_t i = 0; i < sums.size() && step == 0; ++i) first_squares += std::pow(sums[i] - exact[i], 2);
      }
      const std::vector<double> left = values_of(residuals.tensors[0]);  // kSteps is even
      for (size_t i = 0; i < sums.size(); ++i) {
        const double lacking = kSteps * exact[i] - sums[i];
        // Each of the sums of gradient and residual, at most twice the largest gradient, is rounded to fp32 once.
        EXPECT_NEAR(lacking, left[i] * static_cast<double>(residuals.unit), kSteps * 0x1p-24 * 2.0 * largest)
            << name(wire) << ' ' << i;
        last_squares += std::pow(lacking / kSteps, 2);
      }
      EXPECT_LT(std::sqrt(last_squares / first_squares), 3.0 / kSteps) << name(wire);
    }
  }
}

TEST(RoundContribution, FeedbackHasTheSameBitsOnEverySchedule) {
  const PlacementScope scope(Placement::kAligned);
  const int64_t n = device_under_test().large(40000) / 32 * 32;
  const Tensor src = make_tensor(DType::kF32, {n}, random_values(n, 3));
  const Tensor residual = make_tensor(DType::kF32, {n}, random_values(n, 5));
  for (const DType wire : kWires) {
    expect_same_bits_on_every_schedule([&] {
      const Tensor dst = make_unwritten(is_coded(wire) ? DType::kF32 : wire, {n});
      const Tensor next = make_unwritten(DType::kF32, {n});
      RoundContributionArgs args = rounding_of(wire, src, dst, true);
      Residuals{{residual, next}}.give_to(args, 0);
      run(args);
      return std::vector<Tensor>{dst, next};
    });
  }
}

TEST(RoundContribution, FeedbackNeedsBothResidualsTheirUnitAndTheCount) {
  const PlacementScope scope(Placement::kAligned);
  const Tensor src = make_tensor(DType::kF32, {64}, random_values(64, 1));
  RoundContributionArgs good = rounding_of(DType::kBF16, src, make_unwritten(DType::kBF16, {64}), false);
  Residuals{{make_elements(std::vector<float>(64)), make_unwritten(DType::kF32, {64})}}.give_to(good, 0);
  run(good);
  const ExpectRefused<RoundContributionArgs> expect(good, "[round_contribution] ");
  expect([](auto& args) { args.residuals = {}; }, "wire must be e4m3, e5m2 or, rounded stochastically or with error");
  expect([](auto& args) { args.residuals[1] = {}; }, "residuals");
  expect([](auto& args) { args.residuals[0] = args.residuals[0].slice(0, 32); }, "residuals");
  expect([](auto& args) { args.applied = {}; }, "applied");
  expect([](auto& args) { args.unit = {}; }, "unit");
}

}  // namespace coded_contribution_test
}  // namespace mantissa::kernel_test
