// Recomputation changes no bit of losses and gradients: every model, precision and random choice, over micro-batches.
#include <gtest/gtest.h>

#include "tests/models/rounding_bounds.h"
#include "tests/models/training_pass.h"
#include "tests/testing/precisions.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace recompute_test {

using testing::MicroBatch;

constexpr int64_t kLength = 24, kSamples = 3, kVocab = 61;

ModelConfig small(const std::string& name, bool tied) {
  ModelConfig config;
  config.name = name;
  config.layers = 3;
  config.width = 48;
  config.heads = 4;
  config.context = kLength;
  config.vocab = kVocab;
  config.dropout = 0.1f;
  config.init_stddev = 0.1f;
  config.tie_head = tied;
  return config;
}

ModelConfig llama() {
  ModelConfig config = small("gpt", false);
  config.kv_heads = 2;
  config.bias = false;
  config.norm = NormKind::kRmsNorm;
  config.activation = Activation::kSwiglu;
  config.position = Position::kRope;
  return config;
}

// The first block has no gradients, and the second only in its feed-forward layer.
ModelConfig lora() {
  ModelConfig config = llama();
  config.lora = {.rank = 4, .targets = {"blocks.1.mlp.*", "blocks.2.*"}};
  return config;
}

ModelConfig erf_encoder() {
  ModelConfig config = small("encoder", false);
  config.activation = Activation::kGeluErf;
  config.norm = NormKind::kRmsNorm;
  return config;
}

// Each op in the dtype of its region, except a gelu, a down projection and a residual stream.
testing::PrecisionByLayer mixed(DType low) {
  testing::PrecisionByLayer policy(testing::autocast(low));
  policy["blocks.0.mlp"].forced[static_cast<size_t>(Op::kGelu)] = DType::kF32;
  policy["blocks.1.mlp.down"].low = DType::kF16;
  policy["blocks.2"].forced[static_cast<size_t>(Op::kAdd)] = DType::kBF16;
  return policy;
}

// The results of a step.
struct StepResult {
  std::vector<float> values;       // losses, then gradients by name
  std::vector<std::string> ready;  // parameters in the order in which their gradients became complete
  size_t peak_bytes = 0;
};

class RecomputedModel : public ::testing::TestWithParam<std::pair<const char*, ModelConfig>> {
 protected:
  // Two micro-batches, dropout, ignored targets.
  StepResult step(const PrecisionPolicy& policy, Recompute recompute, bool shows_every_op = false) {
    testing::TapeHost host;
    testing::TestModel test(GetParam().second);
    host.bind(test.parameters);
    host.initialize(test.parameters, 1);
    StepResult result;
    test.parameters.forget_gradients();
    for (const int64_t first : {int64_t{0}, int64_t{2}}) {
      const int64_t count = (first == 0 ? 2 : 1) * kLength;
      MicroBatch batch{testing::random_tokens(count, kVocab, 1), testing::random_tokens(count, kVocab, 2), kLength};
      for (size_t i = 5; i < batch.targets.size(); i += 9) batch.targets[i] = kIgnoreIndex;
      TapeOptions options;
      options.random = {.seed = 4, .step = host.step(2), .first_sample = static_cast<uint32_t>(first)};
      options.recompute = recompute;
      options.gradient_ready = [&](Parameter& parameter) { result.ready.push_back(parameter.name); };
      if (shows_every_op) options.after_op = [](std::string_view, std::string_view, Tensor&) {};
      const auto pass = run_pass(host, test, batch, policy, 1.0f / kSamples, std::move(options));
      result.values.push_back(static_cast<float>(pass.loss_sum));
    }
    EXPECT_NO_THROW(host.arena().rewind());
    for (int index = 0; index < test.parameters.size(); ++index) EXPECT_EQ(test.parameters[index].pending_uses, 0);
    const std::vector<float> gradients = testing::flattened(gradients_of(host, test.parameters));
    result.values.insert(result.values.end(), gradients.begin(), gradients.end());
    result.peak_bytes = host.arena().peak_bytes();
    is_slow_ = host.is_slow();
    is_gpu_ = host.is_gpu();
    return result;
  }

  void expect_same(const PrecisionPolicy& policy, DType dtype, const std::string& what) {
    const StepResult kept = step(policy, Recompute::kNone);
    size_t least = kept.peak_bytes;
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      const std::string which = what + (recompute == Recompute::kFull ? ", full" : ", selective");
      const StepResult again = step(policy, recompute);
      // gelu within a GPU's products omits a rounding that gelu of their stored input has (GemmArgs).
      const bool is_exact = recompute == Recompute::kFull || !is_gpu_ || dtype == DType::kF32;
      if (is_exact) {
        EXPECT_EQ(again.values, kept.values) << which;
      } else {
        EXPECT_LE(testing::relative_error(again.values, kept.values), testing::gradient_bound(dtype)) << which;
      }
      EXPECT_EQ(again.ready, kept.ready) << which;
      EXPECT_LT(again.peak_bytes, least) << which;
      least = again.peak_bytes;
    }
  }

  bool is_slow_ = false, is_gpu_ = false;
};

INSTANTIATE_TEST_SUITE_P(Models, RecomputedModel,
                         ::testing::Values(std::pair("Gpt", small("gpt", true)), std::pair("Llama", llama()),
                                           std::pair("Encoder", small("encoder", true)), std::pair("Lora", lora()),
                                           std::pair("ErfEncoder", erf_encoder())),
                         [](const auto& info) { return info.param.first; });

TEST_P(RecomputedModel, GivesTheSameBitsInLessMemory) {
  expect_same(UniformPrecision(Precision{}), DType::kF32, "fp32");
  expect_same(UniformPrecision(testing::autocast(DType::kBF16)), DType::kBF16, "bf16");
  if (is_slow_) return;
  expect_same(UniformPrecision(testing::autocast(DType::kF16)), DType::kF16, "fp16");
  expect_same(mixed(DType::kBF16), DType::kBF16, "mixed");
}

TEST_P(RecomputedModel, GivesTheSameBitsWhereEveryOpIsShown) {
  const UniformPrecision policy(testing::autocast(DType::kBF16));
  const StepResult kept = step(policy, Recompute::kNone, true);
  EXPECT_EQ(step(policy, Recompute::kSelective, true).values, kept.values);
  EXPECT_EQ(step(policy, Recompute::kFull, true).values, kept.values);
}

}  // namespace recompute_test
}  // namespace mantissa
