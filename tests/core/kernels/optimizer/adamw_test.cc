// AdamW updates, and the 16-bit weight that an update writes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>

#include "core/kernels/optimizer/args.h"
#include "core/tensor/half.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/adamw.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace adamw_test {

using reference::random_values;

constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kEpsilon = 1e-8f, kDecay = 0.1f;
constexpr UpdateControl kControl{.apply = 1,
                                 .gradient_multiplier = 0.37f,
                                 .learning_rate = 3e-3f,
                                 .bias_correction1 = 0.271f,
                                 .bias_correction2 = 0.002997f};

struct State {
  Tensor gradient, master, m, v, weight;
};

State make_state(int64_t n, DType m_dtype, const DType* weight_dtype) {
  return {make_tensor(DType::kF32, {n}, random_values(n, 1)), make_tensor(DType::kF32, {n}, random_values(n, 2)),
          make_tensor(m_dtype, {n}, random_values(n, 3, -0.1, 0.1)),
          make_tensor(DType::kF32, {n}, random_values(n, 4, 0.0, 0.01)),
          weight_dtype ? make_unwritten(*weight_dtype, {n}) : Tensor()};
}

void update(const State& state, const UpdateControl& control) {
  run(AdamWArgs{.gradient = state.gradient,
                .master = state.master,
                .m = state.m,
                .v = state.v,
                .weight = state.weight,
                .beta1 = kBeta1,
                .beta2 = kBeta2,
                .epsilon = kEpsilon,
                .weight_decay = kDecay,
                .control = make_record(control)});
}

void check(int64_t n, DType m_dtype, const DType* weight_dtype) {
  const State state = make_state(n, m_dtype, weight_dtype);
  const std::vector<double> g = values_of(state.gradient), w = values_of(state.master);
  const std::vector<double> m = values_of(state.m), v = values_of(state.v);
  update(state, kControl);
  std::vector<double> w_expected, m_expected, v_expected, w_magnitude, m_magnitude;
  for (size_t i = 0; i < g.size(); ++i) {
    const auto next = reference::adamw({w[i], m[i], v[i]}, g[i],
                                       {kBeta1, kBeta2, kEpsilon, kDecay, kControl.gradient_multiplier,
                                        kControl.learning_rate, kControl.bias_correction1, kControl.bias_correction2});
    w_expected.push_back(next.w);
    m_expected.push_back(next.m);
    v_expected.push_back(next.v);
    m_magnitude.push_back(kBeta1 * std::abs(m[i]) + (1.0 - kBeta1) * std::abs(g[i] * kControl.gradient_multiplier));
    const double denominator = std::sqrt(next.v / kControl.bias_correction2) + kEpsilon;
    w_magnitude.push_back(std::abs(w[i]) +
                          kControl.learning_rate * m_magnitude.back() / kControl.bias_correction1 / denominator);
  }
  expect_close(state.m, m_expected, m_magnitude, kAdamWMomentTolerance.steps(), "m");
  expect_close(state.v, v_expected, v_expected, kAdamWMomentTolerance.steps(), "v");
  expect_close(state.master, w_expected, w_magnitude, kAdamWWeightTolerance.steps(), "master");
  if (!weight_dtype) return;
  dispatch(*weight_dtype, [&]<typename W>() {  // the weight is the new master, rounded once
    const std::vector<float> master = elements_of<float>(state.master);
    const std::vector<W> weight = elements_of<W>(state.weight);
    for (size_t i = 0; i < master.size(); ++i) EXPECT_EQ(to_float(weight[i]), to_float(from_float<W>(master[i])));
  });
}

TEST(AdamW, AgreesWithTheReferenceAtOddSizes) {
  device_under_test().on_each_variant([] {
    for (const DType m_dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t n : {1, 3, 17, 63, 64, 65, 129}) {
        check(n, m_dtype, nullptr);
        for (const DType weight_dtype : kFloatDTypes) check(n, m_dtype, &weight_dtype);
      }
    }
  });
}

// Single elements and vectors.
TEST(AdamW, AgreesWithTheReferenceWhereTheEmulatedGridGoesRound) {
  const DType bf16 = DType::kBF16;
  for (const int64_t n : {9001, 70000}) {
    check(n, DType::kF32, nullptr);
    check(n, DType::kBF16, &bf16);
  }
}

TEST(AdamW, LeavesEverythingUntouchedWhenTheVerdictSaysSo) {
  const DType bf16 = DType::kBF16;
  const State state = make_state(65, DType::kF32, &bf16), same = make_state(65, DType::kF32, &bf16);
  set_element(state.gradient, 3, NAN);
  UpdateControl control = kControl;
  control.apply = 0;
  update(state, control);
  EXPECT_EQ(bytes_of(state.master), bytes_of(same.master));
  EXPECT_EQ(bytes_of(state.m), bytes_of(same.m));
  EXPECT_EQ(bytes_of(state.v), bytes_of(same.v));
  EXPECT_EQ(bytes_of(state.weight), bytes_of(same.weight));
}

TEST(AdamW, ANaNGradientStaysWithItsElement) {
  device_under_test().on_each_variant([] {
    const DType f16 = DType::kF16;
    const State state = make_state(35, DType::kBF16, &f16);
    set_element(state.gradient, 34, NAN);
    update(state, kControl);
    for (const Tensor& tensor : {state.master, state.m, state.v, state.weight}) {
      const std::vector<double> values = values_of(tensor);
      for (size_t i = 0; i < 35; ++i) EXPECT_EQ(std::isnan(values[i]), i == 34) << i;
    }
  });
}

TEST(AdamW, TheSameBitsOnEverySchedule) {
  for (const DType weight_dtype : kFloatDTypes) {
    expect_same_bits_on_every_schedule([&] {
      const State state = make_state(device_under_test().large(50001), DType::kBF16, &weight_dtype);
      update(state, kControl);
      return std::vector<Tensor>{state.master, state.m, state.v, state.weight};
    });
  }
}

TEST(AdamW, RefusesAFirstMomentInFp16) {
  const State state = make_state(3, DType::kF16, nullptr);
  expect_contract_error([&] { update(state, kControl); }, "[adamw] m must be fp32 or bf16 (fp16 would underflow)");
}

// ---- The 16-bit weight that an update writes: rounded to nearest, or stochastically by a word that depends only on
// the element.

constexpr DType kHalfDTypes[] = {DType::kBF16, DType::kF16};
constexpr UpdateControl kRoundingControl{.apply = 1,
                                         .gradient_multiplier = 0.37f,
                                         .learning_rate = 3e-3f,
                                         .bias_correction1 = 0.271f,
                                         .bias_correction2 = 0.002997f,
                                         .update = 12};

// Determines the random words.
struct Key {
  uint64_t key = 0x123456789abcdef0u;
  uint32_t parameter = 7;
  int64_t first_element = 64;
  uint32_t update = kRoundingControl.update;
};

uint32_t word_of(const Key& key, int64_t i) {
  const auto element = static_cast<uint64_t>(key.first_element + i);
  const uint64_t group = element / 4;
  return philox(key.key, {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), key.parameter,
                          key.update})[element % 4];
}

AdamWArgs arguments(const Tensor& master, const Tensor& weight, const Key& key) {
  UpdateControl control = kRoundingControl;
  control.update = key.update;
  return {.master = master,
          .weight = weight,
          .weight_decay = 0.1f,
          .control = make_record(control),
          .rounding = WeightRounding::kStochastic,
          .key = key.key,
          .parameter = key.parameter,
          .first_element = key.first_element};
}

// Arguments with an update before the weight is written.
AdamWArgs update_arguments(const Tensor& master, const Tensor& weight, const Key& key, DType m_dtype = DType::kF32) {
  const int64_t n = master.numel();
  AdamWArgs args = arguments(master, weight, key);
  args.gradient = make_tensor(DType::kF32, {n}, random_values(n, 1));
  args.m = make_tensor(m_dtype, {n}, random_values(n, 3, -0.1, 0.1));
  args.v = make_tensor(DType::kF32, {n}, random_values(n, 4, 0.0, 0.01));
  return args;
}

void expect_rounded_masters(const Tensor& master, const Tensor& weight, const Key& key) {
  const std::vector<float> values = elements_of<float>(master);
  dispatch(weight.dtype(), [&]<typename W>() {
    if constexpr (!std::is_same_v<W, float>) {
      const std::vector<W> rounded = elements_of<W>(weight);
      for (size_t i = 0; i < values.size(); ++i) {
        const W expected = round_stochastically<W>(values[i], word_of(key, static_cast<int64_t>(i)));
        ASSERT_EQ(rounded[i].bits, expected.bits) << i << ": " << values[i];
      }
    }
  });
}

void on_each_variant_and_placement(const std::function<void()>& body) {
  device_under_test().on_each_variant([&] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      body();
    }
  });
}

TEST(AdamWRounding, RoundsTheNewMasterByTheWordOfTheElement) {
  on_each_variant_and_placement([] {
    for (const DType dtype : kHalfDTypes) {
      for (const DType m_dtype : {DType::kF32, DType::kBF16}) {
        for (const int64_t n : {1, 3, 17, 64, 65, 129}) {
          const Tensor master = make_tensor(DType::kF32, {n}, random_values(n, 2)), weight = make_unwritten(dtype, {n});
          run(update_arguments(master, weight, {}, m_dtype));
          expect_rounded_masters(master, weight, {});
        }
      }
    }
  });
}

// The update itself has the bits of the one with rounding to nearest.
TEST(AdamWRounding, ChangesNothingButTheWeight) {
  on_each_variant_and_placement([] {
    constexpr int64_t kSize = 133;
    const auto updated = [](WeightRounding rounding) {
      const Tensor master = make_tensor(DType::kF32, {kSize}, random_values(kSize, 2));
      AdamWArgs args = update_arguments(master, make_unwritten(DType::kBF16, {kSize}), {}, DType::kBF16);
      args.rounding = rounding;
      run(args);
      return args;
    };
    const AdamWArgs nearest = updated(WeightRounding::kNearest), stochastic = updated(WeightRounding::kStochastic);
    EXPECT_EQ(bytes_of(stochastic.master), bytes_of(nearest.master));
    EXPECT_EQ(bytes_of(stochastic.m), bytes_of(nearest.m));
    EXPECT_EQ(bytes_of(stochastic.v), bytes_of(nearest.v));
    EXPECT_NE(bytes_of(stochastic.weight), bytes_of(nearest.weight));
  });
}

// Every exponent, NaN and Inf, fp16's subnormals and its largest numbers.
TEST(AdamWRounding, GivesEveryBitOfTheScalarForm) {
  constexpr int64_t kSize = 4001;
  std::vector<float> values;
  for (uint32_t i = 0; i < kSize; ++i) values.push_back(std::bit_cast<float>(philox(9, {i, 0, 0, 0})[0]));
  for (size_t i = 0; i < 1500; ++i) values[i] = std::ldexp(values[i] < 0 ? -1.37f : 1.73f, -static_cast<int>(i % 50));
  const float special[] = {0.0f,     -0.0f,    65504.0f, 65505.0f, -65519.9f,   65520.0f,   65536.0f,  6e-8f,
                           -2e-8f,   5.9e-8f,  6.1e-5f,  3.4e38f,  -3.3961e38f, INFINITY,   -INFINITY, NAN,
                           0x1p-32f, 0x1p-56f, 0x1p-14f, 1e-45f,   -1e-40f,     0x1.8p-25f, 1.0f,      -1.0f};
  std::copy(std::begin(special), std::end(special), values.begin() + 100);
  on_each_variant_and_placement([&] {
    for (const DType dtype : kHalfDTypes) {
      const Tensor master = make_elements(values), weight = make_unwritten(dtype, {kSize});
      run(arguments(master, weight, {}));
      expect_rounded_masters(master, weight, {});
      EXPECT_EQ(elements_of<float>(master).size(), values.size());
    }
  });
}

// Elements around 2^34 of a parameter: the number of a group of four exceeds 32 bits in the middle of a vector.
TEST(AdamWRounding, CountsElementsWithMoreThan32Bits) {
  on_each_variant_and_placement([] {
    constexpr int64_t kSize = 77;
    const Key key{.first_element = (int64_t{1} << 34) - 24};
    const Tensor master = make_tensor(DType::kF32, {kSize}, random_values(kSize, 2)),
                 weight = make_unwritten(DType::kBF16, {kSize});
    run(arguments(master, weight, key));
    expect_rounded_masters(master, weight, key);
  });
}

TEST(AdamWRounding, WritesTheWeightAgainAsTheUpdateDid) {
  on_each_variant_and_placement([] {
    for (const WeightRounding rounding : {WeightRounding::kNearest, WeightRounding::kStochastic}) {
      for (const DType dtype : kFloatDTypes) {
        const Tensor master = make_tensor(DType::kF32, {131}, random_values(131, 2)),
                     weight = make_unwritten(dtype, {131}), again = make_unwritten(dtype, {131});
        AdamWArgs args = update_arguments(master, weight, {}), alone = arguments(master, again, {});
        args.rounding = alone.rounding = rounding;
        run(args);
        const std::vector<std::byte> updated = bytes_of(master);
        run(alone);
        EXPECT_EQ(bytes_of(again), bytes_of(weight));
        EXPECT_EQ(bytes_of(master), updated);
        if (dtype == DType::kF32) {
          EXPECT_EQ(bytes_of(again), updated) << "an fp32 weight is the master";
        }
      }
    }
  });
}

TEST(AdamWRounding, PartsRoundAsTheWholeDoes) {
  on_each_variant_and_placement([] {
    const Tensor master = make_tensor(DType::kF32, {200}, random_values(200, 2));
    const Tensor whole = make_unwritten(DType::kBF16, {200}), parts = make_unwritten(DType::kBF16, {200});
    run(arguments(master, whole, {}));
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 68}, {68, 4}, {72, 128}}) {
      Key key;
      key.first_element += begin;
      run(arguments(master.slice(begin, count), parts.slice(begin, count), key));
    }
    EXPECT_EQ(bytes_of(parts), bytes_of(whole));
  });
}

TEST(AdamWRounding, EveryPartOfTheKeyMatters) {
  constexpr int64_t kSize = 500;
  const Tensor master = make_tensor(DType::kF32, {kSize}, random_values(kSize, 2));
  const auto rounded = [&](const Key& key) {
    const Tensor weight = make_unwritten(DType::kBF16, {kSize});
    run(arguments(master, weight, key));
    return bytes_of(weight);
  };
  const std::vector<std::byte> first = rounded({});
  EXPECT_EQ(rounded({}), first);
  std::vector<Key> others(5);
  others[0].key ^= 1;
  others[1].key ^= uint64_t{1} << 40;
  others[2].parameter += 1;
  others[3].first_element += 4;
  others[4].update += 1;
  for (const Key& other : others) EXPECT_NE(rounded(other), first);
}

// One value in many elements: the mean has the standard deviation gap * sqrt(f (1 - f) / n).
TEST(AdamWRounding, TheMeanOverElementsIsTheMaster) {
  constexpr int64_t kSize = 20000;
  constexpr double kValue = 1.0 + 0x1p-7 * 0.3125, kGap = 0x1p-7;  // in bf16; no tie in fp16 either
  const Tensor master = make_tensor(DType::kF32, {kSize}, std::vector<double>(kSize, kValue));
  const Tensor weight = make_unwritten(DType::kBF16, {kSize});
  run(arguments(master, weight, {}));
  double sum = 0.0;
  for (const double value : values_of(weight)) sum += value;
  EXPECT_NEAR(sum / kSize, kValue, 5.0 * kGap * std::sqrt(0.3125 * 0.6875 / kSize));  // five standard deviations
}

TEST(AdamWRounding, LeavesTheWeightWhereTheVerdictSaysSo) {
  UpdateControl control = kRoundingControl;
  control.apply = 0;
  for (const bool updates : {false, true}) {
    const Tensor master = make_tensor(DType::kF32, {65}, random_values(65, 2)),
                 weight = make_unwritten(DType::kF16, {65});
    const std::vector<std::byte> before = bytes_of(weight);
    AdamWArgs args = updates ? update_arguments(master, weight, {}) : arguments(master, weight, {});
    args.control = make_record(control);
    run(args);
    EXPECT_EQ(bytes_of(weight), before);
  }
}

TEST(AdamWRounding, TheSameBitsOnEverySchedule) {
  for (const DType dtype : kHalfDTypes) {
    expect_same_bits_on_every_schedule([&] {
      const int64_t n = device_under_test().large(50001);
      const Tensor master = make_tensor(DType::kF32, {n}, random_values(n, 2)), weight = make_unwritten(dtype, {n});
      run(update_arguments(master, weight, {}));
      return std::vector<Tensor>{master, weight};
    });
  }
}

TEST(AdamWRounding, NamesWhatIsWrong) {
  const Tensor master = make_tensor(DType::kF32, {8}, random_values(8, 2)), weight = make_unwritten(DType::kBF16, {8});
  expect_contract_error([&] { run(arguments(master, weight, {.first_element = 6})); },
                        "[adamw] first_element must be a multiple of 4");
  expect_contract_error([&] { run(arguments(master, {}, {})); }, "there must be a master and a weight to write");
  AdamWArgs half = update_arguments(master, weight, {});
  half.m = {};
  expect_contract_error([&] { run(half); }, "[adamw] m must be given");
}

}  // namespace adamw_test
}  // namespace mantissa::kernel_test
