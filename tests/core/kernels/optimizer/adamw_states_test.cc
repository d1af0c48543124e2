// AdamW with states in fewer bits: the formula, the rounding of weights without a master and of second moments in bf16,
// and that nothing else changes.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/optimizer/args.h"
#include "core/tensor/half.h"
#include "tests/core/kernels/optimizer/adamw_states.h"
#include "tests/reference/adamw.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

constexpr int64_t kSizes[] = {1, 3, 17, 255, 256, 257, 700};

uint32_t word_of(uint64_t key, const AdamWArgs& args, int64_t i) {
  const auto element = static_cast<uint64_t>(args.first_element + i);
  const uint64_t group = element / 4;
  return philox(key, {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), args.parameter,
                      kStateControl.update})[element % 4];
}

// The same update with all state in fp32, from the decoded values of `args`.
AdamWArgs widened(const AdamWArgs& args) {
  const int64_t n = args.numel();
  AdamWArgs wide = args;
  wide.m = make_tensor(DType::kF32, {n}, moment_values(DynamicMap::kSigned, args.m, args.m_absmax));
  wide.v = make_tensor(DType::kF32, {n}, moment_values(DynamicMap::kUnsigned, args.v, args.v_absmax));
  wide.m_absmax = wide.v_absmax = wide.compensation = {};
  wide.master = make_tensor(DType::kF32, {n}, values_of(args.master.defined() ? args.master : args.weight));
  wide.weight = make_unwritten(DType::kBF16, {n});
  return wide;
}

// Masters, stochastically rounded weights and moments equal those of the fp32 update, rounded once.
TEST(AdamWStates, AreThoseOfFp32RoundedOnce) {
  on_each_variant_and_placement([] {
    for (const StateFormat& format : narrow_formats()) {
      if (format.weights == WeightState::kCompensated) continue;
      for (const int64_t n : kSizes) {
        const AdamWArgs args = make_state(n, format), wide = widened(args);
        run(args);
        run(wide);
        EXPECT_EQ(bytes_of(args.weight), bytes_of(wide.weight)) << n;
        if (args.master.defined()) {
          EXPECT_EQ(bytes_of(args.master), bytes_of(wide.master)) << n;
        }
        if (format.m == DType::kF32) {
          EXPECT_EQ(bytes_of(args.m), bytes_of(wide.m)) << n;
        }
        const std::vector<float> v = elements_of<float>(wide.v);
        for (int64_t i = 0; i < n && format.v == DType::kBF16; ++i) {
          const BFloat16 expected =
              round_stochastically<BFloat16>(v[static_cast<size_t>(i)], word_of(args.moment_key, args, i));
          ASSERT_EQ(elements_of<BFloat16>(args.v.slice(i, 1))[0].bits, expected.bits) << n << ' ' << i;
        }
      }
    }
  });
}

TEST(AdamWStates, WeightAndCompensationTogetherFollowTheFormula) {
  on_each_variant_and_placement([] {
    for (const StateFormat& format : narrow_formats()) {
      if (format.weights != WeightState::kCompensated) continue;
      for (const int64_t n : kSizes) {
        const AdamWArgs args = make_state(n, format);
        const std::vector<double> w = values_of(args.weight), c = values_of(args.compensation),
                                  g = values_of(args.gradient),
                                  m = moment_values(DynamicMap::kSigned, args.m, args.m_absmax),
                                  v = moment_values(DynamicMap::kUnsigned, args.v, args.v_absmax);
        run(args);
        const std::vector<double> new_w = values_of(args.weight), new_c = values_of(args.compensation);
        for (size_t i = 0; i < w.size(); ++i) {
          const auto next = reference::adamw(
              {w[i], m[i], v[i]}, g[i],
              {static_cast<double>(args.beta1), static_cast<double>(args.beta2), static_cast<double>(args.epsilon),
               static_cast<double>(args.weight_decay), static_cast<double>(kStateControl.gradient_multiplier),
               static_cast<double>(kStateControl.learning_rate), static_cast<double>(kStateControl.bias_correction1),
               static_cast<double>(kStateControl.bias_correction2)});
          // The update is computed with a dozen fp32 roundings. The weight is then off by half a bf16 step, and the
          // compensation makes up for it to within half of its own step.
          const double exact = next.w + c[i], moved = std::abs(exact - w[i]);
          EXPECT_NEAR(new_w[i], exact, 0x1p-8 * std::abs(exact) + 0x1p-20 * moved) << n << ' ' << i;
          EXPECT_NEAR(new_w[i] + new_c[i], exact, 0x1p-8 * std::abs(new_c[i]) + 0x1p-20 * (moved + std::abs(w[i])))
              << n << ' ' << i;
        }
      }
    }
  });
}

// With b1 = b2 = 1 moments stay. With v = 1 and powers of two elsewhere, the update -m / 8 is exact.
AdamWArgs exact_state(const std::vector<float>& w, const std::vector<float>& c, const std::vector<float>& m) {
  const auto n = static_cast<int64_t>(w.size());
  const auto doubles = [](const std::vector<float>& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  return {.gradient = make_tensor(DType::kF32, {n}, std::vector<double>(w.size(), 0.0)),
          .m = make_tensor(DType::kF32, {n}, doubles(m)),
          .v = make_tensor(DType::kF32, {n}, std::vector<double>(w.size(), 1.0)),
          .weight = make_tensor(DType::kBF16, {n}, doubles(w)),
          .compensation = make_tensor(DType::kBF16, {n}, doubles(c)),
          .beta1 = 1.0f,
          .beta2 = 1.0f,
          .epsilon = 0x1p-40f,
          .control = make_record(UpdateControl{.learning_rate = 0x1p-3f, .update = 1})};
}

TEST(AdamWStates, CompensatesAsKahan) {
  on_each_variant_and_placement([] {
    constexpr size_t kSize = 300;
    std::vector<float> w, c, m;
    for (size_t i = 0; i < kSize; ++i) {
      const auto random = philox(3, {static_cast<uint32_t>(i), 0, 0, 0});
      const auto in_bf16 = [](double value) { return to_float(from_float<BFloat16>(static_cast<float>(value))); };
      w.push_back(in_bf16(static_cast<double>(random[0]) * 0x1p-31 - 1.0));
      c.push_back(in_bf16((static_cast<double>(random[1]) * 0x1p-31 - 1.0) * 0x1p-9 * static_cast<double>(w[i])));
      m.push_back(in_bf16((static_cast<double>(random[2]) * 0x1p-31 - 1.0) * 0x1p-5));
    }
    const AdamWArgs args = exact_state(w, c, m);
    run(args);
    const auto weights = elements_of<BFloat16>(args.weight), compensations = elements_of<BFloat16>(args.compensation);
    for (size_t i = 0; i < kSize; ++i) {
      const float u = -m[i] / 8.0f + c[i];
      const BFloat16 next = from_float<BFloat16>(w[i] + u);
      EXPECT_EQ(weights[i].bits, next.bits) << i;
      EXPECT_EQ(compensations[i].bits, from_float<BFloat16>(u - (to_float(next) - w[i])).bits) << i;
    }
  });
}

// A thousand updates of 2^-12, a quarter of what rounding to nearest needs at 1: the result is 1 - 1000 / 4096. Kahan's
// sum is within a step of it. So is the mean of stochastic weights, each with 1000 roundings of variance up to gap^2 /
// 4.
TEST(AdamWStates, NeitherFormLosesUpdatesThatAreSmallerThanHalfAStep) {
  constexpr size_t kSize = 64;
  constexpr int kUpdates = 1000;
  AdamWArgs args =
      exact_state(std::vector<float>(kSize, 1.0f), std::vector<float>(kSize, 0.0f), std::vector<float>(kSize, 0x1p-9f));
  AdamWArgs random = args;
  random.weight = make_tensor(DType::kBF16, {kSize}, std::vector<double>(kSize, 1.0));
  random.compensation = {};
  random.rounding = WeightRounding::kStochastic;
  for (uint32_t update = 1; update <= kUpdates; ++update) {
    args.control = random.control = make_record(UpdateControl{.learning_rate = 0x1p-3f, .update = update});
    run(args);
    run(random);
  }
  constexpr double kExpected = 1.0 - kUpdates * 0x1p-12, kGap = 0x1p-8;
  for (const double value : values_of(args.weight)) EXPECT_NEAR(value, kExpected, kGap);
  double sum = 0.0;
  for (const double value : values_of(random.weight)) sum += value;
  EXPECT_NEAR(sum / kSize, kExpected, 5.0 * kGap / 2.0 * std::sqrt(static_cast<double>(kUpdates) / kSize) * 0.5);
}

// Rounding to nearest is no format for second moments: 0.1 % of a value is less than half of a bf16 step.
TEST(AdamWStates, ASecondMomentInBf16Decays) {
  constexpr int64_t kSize = 256;
  constexpr int kUpdates = 700;
  const AdamWArgs args{.gradient = make_tensor(DType::kF32, {kSize}, std::vector<double>(kSize, 0.0)),
                       .master = make_tensor(DType::kF32, {kSize}, std::vector<double>(kSize, 1.0)),
                       .m = make_tensor(DType::kF32, {kSize}, std::vector<double>(kSize, 0.0)),
                       .v = make_tensor(DType::kBF16, {kSize}, std::vector<double>(kSize, 1.0))};
  EXPECT_EQ(from_float<BFloat16>(0.999f * 1.0f), from_float<BFloat16>(1.0f)) << "to nearest it stays";
  AdamWArgs numbered = args;
  for (uint32_t update = 1; update <= kUpdates; ++update) {
    numbered.control = make_record(UpdateControl{.update = update});
    run(numbered);
  }
  double sum = 0.0;
  for (const double value : values_of(args.v)) sum += value;
  // A rounding of v adds a variance of at most (2^-8 v)^2 / 4, which decays later: less than 5 standard deviations of
  // the mean.
  const double expected = std::pow(0.999, kUpdates);
  EXPECT_NEAR(sum / kSize, expected, 5.0 * 0x1p-9 * std::sqrt(static_cast<double>(kUpdates) / kSize));
}

TEST(AdamWStates, WordsOfWeightsAndOfMomentsAreKeyedApart) {
  const StateFormat format{.v = DType::kBF16, .weights = WeightState::kStochastic};
  const auto updated = [&](const std::function<void(AdamWArgs&)>& change) {
    AdamWArgs args = make_state(500, format);
    change(args);
    run(args);
    return std::pair(bytes_of(args.weight), bytes_of(args.v));
  };
  const auto first = updated([](AdamWArgs&) {});
  const auto other_key = updated([](AdamWArgs& args) { args.key ^= 1; });
  const auto other_moment_key = updated([](AdamWArgs& args) { args.moment_key ^= 1; });
  EXPECT_NE(other_key.first, first.first);
  EXPECT_EQ(other_key.second, first.second);
  EXPECT_EQ(other_moment_key.first, first.first);
  EXPECT_NE(other_moment_key.second, first.second);
  for (const auto& change : std::vector<std::function<void(AdamWArgs&)>>{
           [](AdamWArgs& args) { args.parameter += 1; }, [](AdamWArgs& args) { args.first_element += 4; },
           [](AdamWArgs& args) {
             UpdateControl control = kStateControl;
             control.update += 1;
             args.control = make_record(control);
           }}) {
    EXPECT_NE(updated(change).first, first.first);
    EXPECT_NE(updated(change).second, first.second);
  }
}

TEST(AdamWStates, StayWhereTheVerdictSaysSo) {
  UpdateControl control = kStateControl;
  control.apply = 0;
  for (const StateFormat& format : narrow_formats()) {
    const AdamWArgs args = make_state(300, format, control);
    const std::vector<std::byte> before = bytes_of(args);
    run(args);
    EXPECT_EQ(bytes_of(args), before);
  }
}

TEST(AdamWStates, TheSameBitsOnEverySchedule) {
  for (const StateFormat& format : narrow_formats()) {
    expect_same_bits_on_every_schedule([&] {
      const AdamWArgs args = make_state(device_under_test().large(50001), format);
      run(args);
      return tensors_of(args);
    });
  }
}

// More blocks of elements than the emulated grid has warps.
TEST(AdamWStates, AreAllUpdatedWhereTheEmulatedGridGoesRound) {
  const int64_t n = 70000;
  const AdamWArgs args = make_state(n, {DType::kF32, DType::kBF16, WeightState::kMaster}), wide = widened(args);
  run(args);
  run(wide);
  EXPECT_EQ(bytes_of(args.master), bytes_of(wide.master));
  EXPECT_EQ(bytes_of(args.weight), bytes_of(wide.weight));
}

TEST(AdamWStates, MastersCanHaveAnyWeightOrNone) {
  device_under_test().on_each_variant([] {
    for (const DType v_dtype : {DType::kBF16, DType::kU8}) {
      for (const WeightRounding rounding : {WeightRounding::kNearest, WeightRounding::kStochastic}) {
        for (const DType dtype : kFloatDTypes) {
          AdamWArgs args = make_state(300, {.v = v_dtype}), bare = make_state(300, {.v = v_dtype});
          args.rounding = bare.rounding = rounding;
          args.weight = make_unwritten(dtype, {300});
          bare.weight = {};
          AdamWArgs wide = widened(args);
          wide.weight = make_unwritten(dtype, {300});
          for (const AdamWArgs& each : {args, bare, wide}) run(each);
          EXPECT_EQ(bytes_of(args.weight), bytes_of(wide.weight));
          EXPECT_EQ(bytes_of(bare.master), bytes_of(wide.master));
        }
      }
    }
  });
}

TEST(AdamWStates, NamesWhatIsWrong) {
  const auto refused = [](const StateFormat& format, const std::function<void(AdamWArgs&)>& spoil, const char* text) {
    AdamWArgs args = make_state(300, format);
    spoil(args);
    expect_contract_error([&] { run(args); }, text);
  };
  const StateFormat codes{DType::kU8, DType::kU8, WeightState::kMaster}, bare{.weights = WeightState::kStochastic},
      compensated{.weights = WeightState::kCompensated};
  refused(
      bare, [](AdamWArgs& args) { args.rounding = WeightRounding::kNearest; },
      "[adamw] a weight without a master must have a compensation, or else be rounded stochastically");
  refused(
      compensated, [](AdamWArgs& args) { args.rounding = WeightRounding::kStochastic; },
      "[adamw] a weight without a master must have a compensation, or else");
  refused(
      compensated, [](AdamWArgs& args) { args.master = make_tensor(DType::kF32, {300}, random_values(300, 1)); },
      "[adamw] with a master there is nothing to compensate");
  refused(
      compensated, [](AdamWArgs& args) { args.compensation = args.compensation.slice(0, 299); },
      "[adamw] compensation must have 300 elements");
  refused(
      bare, [](AdamWArgs& args) { args.weight = make_unwritten(DType::kF16, {300}); },
      "[adamw] weight without a master must be bf16, got fp16");
  refused(
      bare, [](AdamWArgs& args) { args.weight = {}; }, "[adamw] master or weight must be given");
  refused(
      bare, [](AdamWArgs& args) { args.gradient = args.m = args.v = {}; },
      "[adamw] without gradient, m and v there must be a master and a weight");
  refused(
      codes, [](AdamWArgs& args) { args.m_absmax = {}; }, "[adamw] absmax of codes must be given");
  refused(
      codes, [](AdamWArgs& args) { args.v_absmax = args.v_absmax.slice(0, 1); },
      "[adamw] absmax of codes must have 2 elements");
  refused(
      codes, [](AdamWArgs& args) { args.first_element += 4; }, "[adamw] first_element must be a multiple of 256");
  refused(
      codes, [](AdamWArgs& args) { args.m = make_tensor(DType::kF32, {300}, random_values(300, 1)); },
      "[adamw] m is fp32: only codes have an absmax");
}

// Reports faults of `change` in the state of 1 to 700 elements, in every format.
void expect_faults(int32_t expected, const std::function<void(AdamWArgs& args, int64_t element)>& change) {
  std::vector<StateFormat> formats = narrow_formats();
  formats.push_back({});
  formats.push_back({.m = DType::kBF16});
  on_each_variant_and_placement([&] {
    for (const StateFormat& format : formats) {
      for (const int64_t n : {1, 257, 700}) {
        for (const int64_t element : {int64_t{0}, n - 1}) {
          AdamWArgs args = make_state(n, format);
          args.faults = make_indices({0});
          change(args, element);
          run(args);
          EXPECT_EQ(elements_of<int32_t>(args.faults)[0], expected)
              << fmt::format("m {}, v {}, weights {}, element {} of {}", format.m, format.v,
                             static_cast<int>(format.weights), element, n);
        }
      }
    }
  });
}

// No rounding to another format has to be searched: a magnitude that bf16 cannot hold counts, too.
TEST(AdamWStates, TellOfNumbersThatNoStepMends) {
  const auto gradient = [](AdamWArgs& args, int64_t element, double value) {
    std::vector<double> values = random_values(args.numel(), 1);
    values[static_cast<size_t>(element)] = value;
    args.gradient = make_tensor(DType::kF32, {args.numel()}, values);
  };
  // Lanes beyond the last element do not count, whatever 0 / 0 makes of them.
  expect_faults(0, [](AdamWArgs& args, int64_t) { args.epsilon = 0.0f; });
  expect_faults(0, [&](AdamWArgs& args, int64_t element) { gradient(args, element, 1e19); });
  expect_faults(1, [&](AdamWArgs& args, int64_t element) { gradient(args, element, 1e22); });  // v alone
  expect_faults(1, [&](AdamWArgs& args, int64_t element) { gradient(args, element, NAN); });
  expect_faults(1, [](AdamWArgs& args, int64_t) {  // weights alone
    UpdateControl control = kStateControl;
    control.learning_rate = 3e38f;
    args.control = make_record(control);
  });
  expect_faults(1, [&](AdamWArgs& args, int64_t element) {  // m alone
    UpdateControl control = kStateControl;
    control.learning_rate = 0.0f;
    args.control = make_record(control);
    args.beta1 = 1e10f;
    args.beta2 = 1.0f;  // v stays
    gradient(args, element, 3e38);
  });
}

TEST(AdamWStates, OfAnEarlierUpdateStayReported) {
  const AdamWArgs state = make_state(5, {});
  AdamWArgs args = state;
  args.faults = make_indices({1});
  run(args);
  EXPECT_EQ(elements_of<int32_t>(args.faults)[0], 1);
}

}  // namespace
}  // namespace mantissa::kernel_test
