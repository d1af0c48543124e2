#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/optimizer/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/adamw.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

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

// Element by element and in vectors.
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

}  // namespace
}  // namespace mantissa::kernel_test
