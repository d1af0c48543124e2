// Every gradient of small models against finite differences of the loss, dropout included. The only reference is the
// forward pass.
//
// Central differences of fourth order: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h.
// Noise: a loss of about 2 carries a few roundings of 2^-24, 3e-7; a sum of 12 of them in double has 1e-6. Divided by
// about h in the stencil, that is 1e-4 in every element at h = 0.01. Truncation: h^4 f^(5) / 30, mostly from norms of
// small embeddings: 7.6e-4 of the gradient at h = 0.02, hence 5e-5 of it at h = 0.01. A wrong derivative is off by a
// tenth of its norm or more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/base/thread_team.h"
#include "tests/models/tiny_models.h"
#include "tests/models/training_pass.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

constexpr float kStep = 0.01f;
constexpr double kNoise = 1e-4, kTruncation = 1e-4;

class FiniteDifference : public ::testing::TestWithParam<std::pair<const char*, ModelConfig>> {};

INSTANTIATE_TEST_SUITE_P(Models, FiniteDifference,
                         ::testing::Values(std::pair("Gpt", testing::tiny_gpt()),
                                           std::pair("Llama", testing::tiny_llama()),
                                           std::pair("Lora", testing::tiny_lora()),
                                           std::pair("LlamaLora", testing::tiny_llama_lora()),
                                           std::pair("Encoder", testing::tiny_encoder())),
                         [](const auto& info) { return info.param.first; });

TEST_P(FiniteDifference, EveryElementOfEveryParameter) {
  set_threads(1);  // thousands of tiny passes
  testing::TapeHost host(size_t{4} << 20);
  testing::TestModel test(GetParam().second);
  host.bind(test.parameters);
  std::vector<std::vector<float>> weights;
  for (int i = 0; i < test.parameters.size(); ++i) {
    const Parameter& parameter = test.parameters[i];
    weights.push_back(testing::tiny_weights(parameter));
    host.set_weight(test.parameters[i], weights.back());
  }
  const testing::MicroBatch batch = testing::tiny_batch();
  const UniformPrecision fp32;
  // Forward only, with the dropout of a training pass; the tape is dropped.
  const auto loss = [&] {
    TapeOptions options;
    options.random = {.seed = 9, .step = host.step(3), .first_sample = 2};
    const auto tape = host.tape(fp32, std::move(options));
    const LossOutput output =
        test.model->loss(*tape, host.tensor(batch.tokens), host.tensor(batch.targets), batch.sequence_length);
    const std::vector<float> losses = host.values(output.losses);
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  };

  TapeOptions options;
  options.random = {.seed = 9, .step = host.step(3), .first_sample = 2};
  run_pass(host, test, batch, fp32, 1.0f, std::move(options));
  for (int i = 0; i < test.parameters.size(); ++i) {
    Parameter& parameter = test.parameters[i];
    if (!parameter.is_trainable) continue;
    std::vector<float>& values = weights[static_cast<size_t>(i)];
    // 11 shares no factor with any dimension, so the sample covers all rows and columns.
    const size_t stride = host.is_slow() ? std::min<size_t>(11, values.size()) : 1;
    const std::vector<float> whole = host.values(parameter.gradient);
    std::vector<float> numeric, gradient;
    for (size_t element = 0; element < values.size(); element += stride) {
      const float original = values[element];
      const auto at = [&](float offset) {
        values[element] = original + offset;
        host.set_weight(parameter, values);
        return loss();
      };
      const double inner = at(kStep) - at(-kStep), outer = at(2 * kStep) - at(-2 * kStep);
      numeric.push_back(static_cast<float>((8 * inner - outer) / (12.0 * kStep)));
      gradient.push_back(whole[element]);
      values[element] = original;
      host.set_weight(parameter, values);
    }
    const double norm = testing::norm(gradient), noise = kNoise * std::sqrt(static_cast<double>(gradient.size()));
    EXPECT_GT(norm, stride == 1 ? 0.1 : 0.0) << parameter.name;
    EXPECT_LT(testing::relative_error(gradient, numeric), 2 * noise / norm + kTruncation) << parameter.name;
  }
}

}  // namespace
}  // namespace mantissa
