// Models in fp64: every gradient against finite differences of the loss, dropout included, and the rounding of fp32
// against fp64. The only reference is the forward pass.
//
// Central differences of fourth order: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h, with h = 2^-12.
// Noise: a loss of about 2 carries a few roundings of 2^-53, 1e-15. Divided by about h in the stencil, that is 1e-11 in
// every element. Truncation: h^4 f^(5) / 30, 7.6e-4 of the gradient at h = 0.02 (finite_difference_test), hence 2e-11
// of it here. A rounding to fp32 anywhere on the way of the gradients would be 1e-8 of them, and in the loss 1e-4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "amp/autocast_policy.h"
#include "core/base/thread_team.h"
#include "tests/models/tiny_models.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

constexpr double kStep = 0x1p-13, kNoise = 2e-11, kTruncation = 1e-10;

AutocastPolicy policy_of(DType compute) {
  const PrecisionConfig config{.compute = compute};
  return AutocastPolicy(expand(config, 2));
}

// A model in one precision. Its random weights are fp32 numbers.
struct Instance {
  Instance(const ModelConfig& config, DType compute) : policy(policy_of(compute)), host(size_t{8} << 20), test(config) {
    assign_working_dtypes(test.parameters, policy, WorkingWeights::kLow);
    host.bind(test.parameters);
    for (int i = 0; i < test.parameters.size(); ++i) {
      Parameter& parameter = test.parameters[i];
      host.set_weight(parameter, testing::tiny_weights(parameter));
    }
  }

  std::vector<double> download(const Tensor& tensor) {
    if (tensor.dtype() == DType::kF64) {
      std::vector<double> values(static_cast<size_t>(tensor.numel()));
      host.backend().download(tensor, values.data(), host.stream());
      return values;
    }
    const std::vector<float> narrow = host.values(tensor);
    return {narrow.begin(), narrow.end()};
  }

  TapeOptions options() {
    return {.random = {.seed = 9, .step = host.step(3), .first_sample = 2},
            .loss_gradient = host.tensor({1.0f}, {1}, wide_of(policy.at("").low))};
  }
  // The loss, with the dropout of a training pass. Backward passes write gradients as well.
  double pass(bool backward, TapeOptions options) {
    const auto tape = host.tape(policy, std::move(options));
    const LossOutput output =
        test.model->loss(*tape, host.tensor(batch.tokens), host.tensor(batch.targets), batch.sequence_length);
    const std::vector<double> losses = download(output.losses);
    if (backward) tape->backward(output.sum);
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  }
  double loss() { return pass(false, options()); }

  AutocastPolicy policy;
  testing::TapeHost host;
  testing::TestModel test;
  testing::MicroBatch batch = testing::tiny_batch();
};

double norm_of(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

double relative_difference(const std::vector<double>& found, const std::vector<double>& expected) {
  std::vector<double> difference(expected.size());
  std::transform(found.begin(), found.end(), expected.begin(), difference.begin(), std::minus<>());
  return norm_of(difference) / norm_of(expected);
}

class Fp64Model : public ::testing::TestWithParam<std::pair<const char*, ModelConfig>> {};

INSTANTIATE_TEST_SUITE_P(Models, Fp64Model,
                         ::testing::Values(std::pair("Gpt", testing::tiny_gpt()),
                                           std::pair("Llama", testing::tiny_llama()),
                                           std::pair("Decoder", testing::tiny_decoder()),
                                           std::pair("Encoder", testing::tiny_encoder())),
                         [](const auto& info) { return info.param.first; });

TEST_P(Fp64Model, EveryGradientIsThatOfFiniteDifferences) {
  set_threads(1);  // thousands of tiny passes
  Instance fp64(GetParam().second, DType::kF64);
  fp64.pass(true, fp64.options());
  for (int i = 0; i < fp64.test.parameters.size(); ++i) {
    Parameter& parameter = fp64.test.parameters[i];
    ASSERT_EQ(parameter.weight.dtype(), DType::kF64) << parameter.name;
    const std::vector<double> gradient = fp64.download(parameter.gradient);
    std::vector<double> values = fp64.download(parameter.weight), numeric;
    for (double& value : values) {
      const double original = value;
      const auto at = [&](double offset) {
        value = original + offset;
        fp64.host.backend().upload(values.data(), parameter.weight, fp64.host.stream());
        ++parameter.version;
        return fp64.loss();
      };
      const double inner = at(kStep) - at(-kStep), outer = at(2 * kStep) - at(-2 * kStep);
      numeric.push_back((8 * inner - outer) / (12 * kStep));
      at(0.0);
    }
    const double norm = norm_of(gradient), noise = kNoise * std::sqrt(static_cast<double>(gradient.size()));
    EXPECT_GT(norm, 0.1) << parameter.name;
    EXPECT_LT(relative_difference(gradient, numeric), 2 * noise / norm + kTruncation) << parameter.name;
  }
}

TEST_P(Fp64Model, ShowsTheRoundingOfFp32) {
  Instance fp64(GetParam().second, DType::kF64), fp32(GetParam().second, DType::kF32);
  const double exact = fp64.pass(true, fp64.options()), rounded = fp32.pass(true, fp32.options());
  EXPECT_GT(std::abs(rounded - exact), 1e-9 * exact) << "fp64 rounds as fp32 does";
  EXPECT_LT(std::abs(rounded - exact), 1e-6 * exact);
  for (int i = 0; i < fp64.test.parameters.size(); ++i) {
    const double error = relative_difference(fp32.download(fp32.test.parameters[i].gradient),
                                             fp64.download(fp64.test.parameters[i].gradient));
    EXPECT_GT(error, 1e-9) << fp64.test.parameters[i].name;
    EXPECT_LT(error, 1e-5) << fp64.test.parameters[i].name;
  }
}

// Each op's output is examined as in fp32, and each form of recomputation gives the same bits.
TEST_P(Fp64Model, RecomputesTheSameBitsAndFindsTheFirstNonFiniteOutput) {
  Instance fp64(GetParam().second, DType::kF64);
  const double loss = fp64.pass(true, fp64.options());
  const std::vector<double> gradient = fp64.download(fp64.test.parameters[0].gradient);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    fp64.test.parameters.forget_gradients();
    TapeOptions options = fp64.options();
    options.recompute = recompute;
    EXPECT_EQ(fp64.pass(true, std::move(options)), loss);
    EXPECT_EQ(fp64.download(fp64.test.parameters[0].gradient), gradient);
  }
  Parameter& up = *fp64.test.parameters.find("blocks.0.mlp.up.weight");
  const double infinity = std::numeric_limits<double>::infinity();
  fp64.host.backend().upload(&infinity, up.weight.slice(0, 1), fp64.host.stream());
  ++up.version;
  TapeOptions options = fp64.options();
  options.check_outputs = true;
  const auto tape = fp64.host.tape(fp64.policy, std::move(options));
  fp64.test.model->loss(*tape, fp64.host.tensor(fp64.batch.tokens), fp64.host.tensor(fp64.batch.targets), 5);
  ASSERT_TRUE(tape->first_non_finite().has_value());
  EXPECT_EQ(tape->first_non_finite()->layer, "blocks.0.mlp.up");
}

}  // namespace
}  // namespace mantissa
