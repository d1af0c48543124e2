// Adapters: the layers with them, equality with merged weights, and that nothing else is trained.
#include "models/layers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/models/tiny_models.h"
#include "tests/models/training_pass.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

std::vector<std::string> adapters_for(std::vector<std::string> targets) {
  ModelConfig config = testing::tiny_llama();
  config.lora = {.rank = 2, .targets = std::move(targets)};
  ParameterSet parameters;
  create_model(config, parameters);
  std::vector<std::string> places;
  for (int i = 0; i < parameters.size(); ++i) {
    const auto place = adapter_place(parameters[i]);
    EXPECT_EQ(parameters[i].is_trainable, place.has_value()) << parameters[i].name;
    if (place && parameters[i].name.ends_with("lora_a.weight"))
      places.push_back(place->layer + "/" + place->projection);
  }
  return places;
}

TEST(LoraTargets, PatternsNameLayersAndProjections) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(adapters_for({"*"}).size(), 7u);
  EXPECT_EQ(adapters_for({"q_proj", "v_proj"}),
            (Names{"blocks.0.attention.qkv/q_proj", "blocks.0.attention.qkv/v_proj"}));
  EXPECT_EQ(adapters_for({"attention.qkv"}).size(), 3u);
  EXPECT_EQ(adapters_for({"blocks.*.mlp.*"}),
            (Names{"blocks.0.mlp.up/gate_proj", "blocks.0.mlp.up/up_proj", "blocks.0.mlp.down/down_proj"}));
  EXPECT_EQ(adapters_for({"o_proj"}), Names{"blocks.0.attention.out/o_proj"});
}

TEST(LoraTargets, AnUnknownPatternListsTheLinearLayers) {
  const std::string error = testing::error_of([] { adapters_for({"q_proj", "w_proj"}); });
  EXPECT_TRUE(
      error.starts_with("model.lora.targets: 'w_proj' selects no linear layer in the blocks of this model; "
                        "there are blocks.0.attention.out, blocks.0.attention.qkv, blocks.0.mlp.down, "
                        "blocks.0.mlp.up"))
      << error;
}

TEST(LoraAdapters, StartAsPeftDoes) {
  ModelConfig config = testing::tiny_llama();
  config.lora = {.rank = 64, .targets = {"down_proj"}};
  ParameterSet parameters;
  create_model(config, parameters);
  const Parameter& down = *parameters.find("blocks.0.mlp.down.down_proj.lora_a.weight");
  const Parameter& up = *parameters.find("blocks.0.mlp.down.down_proj.lora_b.weight");
  EXPECT_EQ(down.shape, (Shape{64, 10}));
  EXPECT_EQ(up.shape, (Shape{8, 64}));
  std::vector<float> values(640), part(64);
  initial_values(down, 3, 0, 640, values.data());
  initial_values(down, 3, 131, 64, part.data());  // an element depends on its own number alone
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 131));
  const float bound = 1.0f / std::sqrt(10.0f);
  double squares = 0.0;
  for (const float value : values) {
    EXPECT_LE(std::abs(value), bound);
    squares += static_cast<double>(value) * value;
  }
  // The mean square of 640 numbers has a relative standard error of sqrt(4/5) / sqrt(640) = 0.035.
  EXPECT_NEAR(squares / 640.0 * 3.0 / (bound * bound), 1.0, 4 * 0.035);
  std::vector<float> zeros(512, 1.0f);
  initial_values(up, 3, 0, 512, zeros.data());
  EXPECT_EQ(zeros, std::vector<float>(512, 0.0f));
}

// W + factor * B A of every adapter, in place of the adapters.
void set_merged(testing::TapeHost& host, const ParameterSet& from, ParameterSet& to, float factor) {
  for (int i = 0; i < to.size(); ++i) {
    std::vector<float> merged = host.values(from.find(to[i].name)->weight);
    int64_t row = 0;
    const bool is_qkv = to[i].name.ends_with("qkv.weight"), is_up = to[i].name.ends_with("mlp.up.weight");
    const int64_t columns = to[i].shape.rank() == 2 ? to[i].shape[1] : 1;
    const std::vector<std::pair<std::string, int64_t>> projections =
        is_qkv  ? std::vector<std::pair<std::string, int64_t>>{{"q_proj", 8}, {"k_proj", 4}, {"v_proj", 4}}
        : is_up ? std::vector<std::pair<std::string, int64_t>>{{"gate_proj", 10}, {"up_proj", 10}}
                : std::vector<std::pair<std::string, int64_t>>{{"o_proj", 8}, {"down_proj", 8}};
    for (const auto& [projection, rows] : projections) {
      const AdapterPlace place{std::string(to[i].layer()), projection};
      const Parameter* const down = from.find(adapter_name(place, "lora_a"));
      if (down != nullptr) {
        const std::vector<float> a = host.values(down->weight);
        const std::vector<float> b = host.values(from.find(adapter_name(place, "lora_b"))->weight);
        const int64_t rank = down->shape[0];
        for (int64_t n = 0; n < rows; ++n) {
          for (int64_t k = 0; k < columns; ++k) {
            double sum = 0.0;
            for (int64_t r = 0; r < rank; ++r) {
              sum +=
                  static_cast<double>(b[static_cast<size_t>(n * rank + r)]) * a[static_cast<size_t>(r * columns + k)];
            }
            merged[static_cast<size_t>((row + n) * columns + k)] += factor * static_cast<float>(sum);
          }
        }
      }
      if (is_qkv || is_up) row += rows;
    }
    host.set_weight(to[i], merged);
  }
}

TEST(LoraAdapters, AddWhatMergedWeightsWould) {
  ModelConfig config = testing::tiny_llama();
  testing::TapeHost host;
  testing::TestModel merged(config);
  config.lora = {.rank = 2, .alpha = 3.0f, .targets = {"*"}};
  testing::TestModel adapted(config);
  for (testing::TestModel* const test : {&merged, &adapted}) host.bind(test->parameters);
  for (int i = 0; i < adapted.parameters.size(); ++i) {
    host.set_weight(adapted.parameters[i], testing::tiny_weights(adapted.parameters[i]));
  }
  set_merged(host, adapted.parameters, merged.parameters, 1.5f);
  const testing::MicroBatch batch = testing::tiny_batch();
  TapeOptions options;
  options.mode = TapeMode::kEvaluation;
  const auto a = run_pass(host, adapted, batch, UniformPrecision(), 1.0f, options);
  const auto b = run_pass(host, merged, batch, UniformPrecision(), 1.0f, options);
  // Both round each of some 10 sums of at most 20 products; magnitudes grow to about 10 times the result.
  EXPECT_LT(testing::relative_error(a.logits, b.logits), 20 * 10 * 10 * 0x1p-24);
}

TEST(LoraAdapters, FrozenParametersNeedNoGradient) {
  testing::TapeHost host;
  testing::TestModel test(testing::tiny_llama_lora());
  host.bind(test.parameters);
  host.initialize(test.parameters, 5);
  std::vector<std::string> ready;
  TapeOptions options;
  options.gradient_ready = [&](Parameter& parameter) {
    EXPECT_TRUE(parameter.is_trainable) << parameter.name;
    ready.push_back(parameter.name);
  };
  options.random = {.seed = 9, .step = host.step(3), .first_sample = 2};
  run_pass(host, test, testing::tiny_batch(), UniformPrecision(), 1.0f, std::move(options));
  int64_t trainable = 0;
  for (int i = 0; i < test.parameters.size(); ++i) trainable += test.parameters[i].is_trainable;
  EXPECT_EQ(std::ssize(ready), trainable);
}

}  // namespace
}  // namespace mantissa
