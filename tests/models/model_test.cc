// The registry; parameter names, shapes and counts; initial values; operation counts.
#include "models/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/models/tiny_models.h"
#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

ModelConfig gpt2_124m() {
  ModelConfig config;
  config.layers = 12;
  config.width = 768;
  config.heads = 12;
  config.context = 1024;
  config.vocab = 50257;
  return config;
}

ModelConfig llama() {
  ModelConfig config;
  config.layers = 2;
  config.width = 24;
  config.heads = 4;
  config.kv_heads = 2;
  config.vocab = 37;
  config.mlp_width = 28;
  config.context = 16;
  testing::use_llama_layers(config);
  return config;
}

std::vector<std::string> described(const ParameterSet& parameters) {
  std::vector<std::string> lines;
  for (int i = 0; i < parameters.size(); ++i) {
    lines.push_back(fmt::format("{} {}", parameters[i].name, parameters[i].shape));
  }
  return lines;
}

TEST(ModelRegistry, NamesTheModelsThatExist) {
  ModelConfig config;
  config.name = "gtp";
  ParameterSet parameters;
  EXPECT_EQ(testing::error_of([&] { create_model(config, parameters); }),
            "model.name: expected one of encoder, gpt, got 'gtp'");
}

TEST(ModelParameters, Gpt2With124MillionParameters) {
  ParameterSet parameters;
  const auto model = create_model(gpt2_124m(), parameters);
  EXPECT_EQ(parameters.numel(), 124439808);
  EXPECT_EQ(parameters.size(), 2 + 12 * 12 + 2);
  EXPECT_EQ(model->objective(), Objective::kNextToken);
}

TEST(ModelParameters, GptNamesAndShapes) {
  ModelConfig config;
  config.layers = 1;
  config.width = 8;
  config.heads = 2;
  config.context = 5;
  config.vocab = 11;
  ParameterSet parameters;
  create_model(config, parameters);
  EXPECT_EQ(described(parameters), (std::vector<std::string>{
                                       "token_embedding.weight (11, 8)",
                                       "position_embedding.weight (5, 8)",
                                       "blocks.0.norm1.weight (8)",
                                       "blocks.0.norm1.bias (8)",
                                       "blocks.0.attention.qkv.weight (24, 8)",
                                       "blocks.0.attention.qkv.bias (24)",
                                       "blocks.0.attention.out.weight (8, 8)",
                                       "blocks.0.attention.out.bias (8)",
                                       "blocks.0.norm2.weight (8)",
                                       "blocks.0.norm2.bias (8)",
                                       "blocks.0.mlp.up.weight (32, 8)",
                                       "blocks.0.mlp.up.bias (32)",
                                       "blocks.0.mlp.down.weight (8, 32)",
                                       "blocks.0.mlp.down.bias (8)",
                                       "final_norm.weight (8)",
                                       "final_norm.bias (8)",
                                   }));
}

TEST(ModelParameters, LlamaNamesAndShapes) {
  ModelConfig config = llama();
  config.layers = 1;
  ParameterSet parameters;
  create_model(config, parameters);
  EXPECT_EQ(described(parameters), (std::vector<std::string>{
                                       "token_embedding.weight (37, 24)",
                                       "blocks.0.norm1.weight (24)",
                                       "blocks.0.attention.qkv.weight (48, 24)",
                                       "blocks.0.attention.out.weight (24, 24)",
                                       "blocks.0.norm2.weight (24)",
                                       "blocks.0.mlp.up.weight (56, 24)",
                                       "blocks.0.mlp.down.weight (24, 28)",
                                       "final_norm.weight (24)",
                                       "head.weight (37, 24)",
                                   }));
}

TEST(ModelParameters, EncoderIsPostNormWithoutAFinalNorm) {
  ModelConfig config;
  config.name = "encoder";
  config.layers = 1;
  config.width = 8;
  config.heads = 2;
  config.context = 5;
  config.vocab = 11;
  ParameterSet parameters;
  const auto model = create_model(config, parameters);
  std::vector<std::string> weights;
  for (int i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name.ends_with(".weight")) weights.push_back(parameters[i].name);
  }
  EXPECT_EQ(weights, (std::vector<std::string>{"token_embedding.weight", "position_embedding.weight",
                                               "blocks.0.attention.qkv.weight", "blocks.0.attention.out.weight",
                                               "blocks.0.norm1.weight", "blocks.0.mlp.up.weight",
                                               "blocks.0.mlp.down.weight", "blocks.0.norm2.weight"}))
      << "in order of use";
  EXPECT_EQ(model->objective(), Objective::kMaskedToken);
}

TEST(ModelParameters, TiedTableIsConsumedByTheHead) {
  ParameterSet tied, untied;
  create_model(gpt2_124m(), tied);
  create_model(llama(), untied);
  EXPECT_EQ(tied.find("token_embedding.weight")->precision_layer(), "head");
  EXPECT_EQ(untied.find("token_embedding.weight")->precision_layer(), "token_embedding");
}

// Mean and standard deviation of the values drawn for every matrix, within five standard errors: s / sqrt(n), s /
// sqrt(2n).
TEST(ModelInit, MatricesBiasesAndGains) {
  ModelConfig config = gpt2_124m();
  config.layers = 8;
  config.vocab = 5000;
  ParameterSet parameters;
  create_model(config, parameters);
  const double residual = 0.02 / std::sqrt(2.0 * 8.0);
  for (int i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const int64_t count = std::min<int64_t>(parameter.numel(), 20000);
    std::vector<float> values(static_cast<size_t>(count));
    initial_values(parameter, 1, 0, count, values.data());
    if (parameter.shape.rank() == 1) {
      const float expected = parameter.name.ends_with(".bias") ? 0.0f : 1.0f;
      EXPECT_EQ(values, std::vector<float>(values.size(), expected)) << parameter.name;
      continue;
    }
    const bool adds_to_stream =
        parameter.name.ends_with("attention.out.weight") || parameter.name.ends_with("mlp.down.weight");
    const double stddev = adds_to_stream ? residual : 0.02;
    double sum = 0.0, squares = 0.0;
    for (const float value : values) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    const double n = static_cast<double>(count);
    EXPECT_NEAR(sum / n, 0.0, 5 * stddev / std::sqrt(n)) << parameter.name;
    EXPECT_NEAR(std::sqrt(squares / n), stddev, 5 * stddev / std::sqrt(2 * n)) << parameter.name;
  }
}

// Streams are keyed by a 32-bit hash of the name, so no two matrices of a large model may share a hash.
TEST(ModelInit, EveryMatrixOfALargeModelHasItsOwnNumbers) {
  ModelConfig config = gpt2_124m();
  config.layers = 96;
  ParameterSet parameters;
  create_model(config, parameters);
  std::set<float> first_values;
  int matrices = 0;
  for (int i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = parameters[i];
    if (parameter.init.kind != Init::Kind::kNormal) continue;
    parameter.init.stddev = 1.0f;  // independent of their scale
    float value = 0.0f;
    initial_values(parameter, 1, 0, 1, &value);
    first_values.insert(value);
    ++matrices;
  }
  EXPECT_EQ(matrices, 2 + 96 * 4);
  EXPECT_EQ(static_cast<int>(first_values.size()), matrices);
}

TEST(ModelInit, DependsOnNothingButSeedAndName) {
  ModelConfig deep = gpt2_124m(), shallow = gpt2_124m();
  shallow.layers = 12;
  deep.layers = 12;
  deep.vocab = 300;  // another parameter's size does not change this one's numbers
  ParameterSet a, b;
  create_model(deep, a);
  create_model(shallow, b);
  std::vector<float> first(100), second(100);
  initial_values(*a.find("blocks.7.mlp.down.weight"), 5, 50, 100, first.data());
  initial_values(*b.find("blocks.7.mlp.down.weight"), 5, 50, 100, second.data());
  EXPECT_EQ(first, second);
}

// 6 * (12 * (12 * 768^2) + 768 * 50257) + 12 * 12 * 1024 * 768.
TEST(ModelFlops, Gpt2) { EXPECT_EQ(training_flops_per_token(gpt2_124m()), 854438400.0); }

// The same from the parameters: every matrix but the embeddings is multiplied once per token.
TEST(ModelFlops, AgreesWithTheParametersOfEveryVariant) {
  ModelConfig no_gate = llama();
  no_gate.activation = Activation::kGeluErf;
  ModelConfig all_heads = llama();
  all_heads.kv_heads = 0;
  all_heads.mlp_width = 0;
  ModelConfig encoder = llama();
  encoder.name = "encoder";
  for (const ModelConfig& config : {llama(), no_gate, all_heads, encoder}) {
    ParameterSet parameters;
    create_model(config, parameters);
    int64_t multiplied = 0;
    for (int i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (parameter.shape.rank() == 2 && !parameter.name.ends_with("embedding.weight")) multiplied += parameter.numel();
    }
    const double attention = 12.0 * static_cast<double>(config.layers * config.context * config.width);
    EXPECT_EQ(training_flops_per_token(config), 6.0 * static_cast<double>(multiplied) + attention);
  }
}

}  // namespace
}  // namespace mantissa
