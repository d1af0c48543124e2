// The ops that a model runs in each layer. Precision overrides, faults and checkpoints name these paths.
#include <gtest/gtest.h>

#include "core/ops/activation.h"
#include "tests/models/training_pass.h"
#include "tests/testing/precisions.h"

namespace mantissa {
namespace {

using Lines = std::vector<std::string>;

ModelConfig small(const std::string& name) {
  ModelConfig config;
  config.name = name;
  config.layers = 1;
  config.width = 8;
  config.heads = 2;
  config.context = 4;
  config.vocab = 7;
  config.dropout = 0.5f;
  return config;
}

// "layer: op dtype" of every op of a forward pass, under autocast to bf16.
Lines sequence(const ModelConfig& config) {
  testing::TapeHost host(size_t{1} << 20);
  testing::TestModel test(config);
  host.bind(test.parameters);
  const UniformPrecision bf16(testing::autocast(DType::kBF16));
  Lines lines;
  TapeOptions options;
  options.after_op = [&](std::string_view layer, std::string_view op, Tensor& output) {
    lines.push_back(fmt::format("{}: {} {}", layer, op, output.dtype()));
  };
  run_pass(host, test, {{1, 2, 3, 4}, {2, 3, 4, 5}, 4}, bf16, 1.0f, std::move(options));
  return lines;
}

TEST(OpSequence, Gpt) {
  EXPECT_EQ(sequence(small("gpt")), (Lines{
                                        "token_embedding: embedding fp32",
                                        "token_embedding: dropout fp32",
                                        "blocks.0.norm1: layer_norm bf16",
                                        "blocks.0.attention.qkv: linear bf16",
                                        "blocks.0.attention: attention bf16",
                                        "blocks.0.attention.out: linear bf16",
                                        "blocks.0.attention: dropout bf16",
                                        "blocks.0: add fp32",
                                        "blocks.0.norm2: layer_norm bf16",
                                        "blocks.0.mlp.up: linear bf16",
                                        "blocks.0.mlp: gelu bf16",
                                        "blocks.0.mlp.down: linear bf16",
                                        "blocks.0.mlp: dropout bf16",
                                        "blocks.0: add fp32",
                                        "final_norm: layer_norm bf16",
                                        "head: linear bf16",
                                        ": cross_entropy fp32",
                                    }));
}

TEST(OpSequence, Llama) {
  ModelConfig config = small("gpt");
  config.dropout = 0.0f;
  config.norm = NormKind::kRmsNorm;
  config.activation = Activation::kSwiglu;
  config.position = Position::kRope;
  EXPECT_EQ(sequence(config), (Lines{
                                  "token_embedding: embedding fp32",
                                  "blocks.0.norm1: rms_norm bf16",
                                  "blocks.0.attention.qkv: linear bf16",
                                  "blocks.0.attention: rope bf16",
                                  "blocks.0.attention: attention bf16",
                                  "blocks.0.attention.out: linear bf16",
                                  "blocks.0: add fp32",
                                  "blocks.0.norm2: rms_norm bf16",
                                  "blocks.0.mlp.up: linear bf16",
                                  "blocks.0.mlp: swiglu bf16",
                                  "blocks.0.mlp.down: linear bf16",
                                  "blocks.0: add fp32",
                                  "final_norm: rms_norm bf16",
                                  "head: linear bf16",
                                  ": cross_entropy fp32",
                              }));
}

TEST(OpSequence, EncoderNormalisesTheStreamInFp32) {
  EXPECT_EQ(sequence(small("encoder")), (Lines{
                                            "token_embedding: embedding fp32",
                                            "token_embedding: dropout fp32",
                                            "blocks.0.attention.qkv: linear bf16",
                                            "blocks.0.attention: attention bf16",
                                            "blocks.0.attention.out: linear bf16",
                                            "blocks.0.attention: dropout bf16",
                                            "blocks.0: add fp32",
                                            "blocks.0.norm1: layer_norm fp32",
                                            "blocks.0.mlp.up: linear bf16",
                                            "blocks.0.mlp: gelu bf16",
                                            "blocks.0.mlp.down: linear bf16",
                                            "blocks.0.mlp: dropout bf16",
                                            "blocks.0: add fp32",
                                            "blocks.0.norm2: layer_norm fp32",
                                            "head: linear bf16",
                                            ": cross_entropy fp32",
                                        }));
}

// The name of an activation in configurations begins with the name of its op.
TEST(OpSequence, EachActivationRunsItsOp) {
  for (const auto& [text, activation] : kActivationNames) {
    ModelConfig config = small("gpt");
    config.dropout = 0.0f;
    config.activation = activation;
    std::string op;
    for (const std::string& line : sequence(config)) {
      if (line.starts_with("blocks.0.mlp: ")) op = line.substr(14, line.rfind(' ') - 14);
    }
    EXPECT_TRUE(!op.empty() && text.starts_with(op))
        << text << " runs the op '" << op << "': see activate() in core/ops/activation.cc";
  }
}

// A norm rounds to the dtype of the next linear layer, even if that layer has an override.
TEST(OpSequence, NormsFollowTheirConsumersPrecision) {
  testing::TapeHost host(size_t{1} << 20);
  testing::TestModel test(small("gpt"));
  host.bind(test.parameters);
  testing::PrecisionByLayer policy(testing::autocast(DType::kBF16));
  policy["blocks.0.mlp.up"].low = DType::kF16;
  policy["head"].low = DType::kF32;
  std::map<std::string, DType> outputs;
  TapeOptions options;
  options.after_op = [&](std::string_view layer, std::string_view, Tensor& output) {
    outputs[std::string(layer)] = output.dtype();
  };
  run_pass(host, test, {{1, 2, 3, 4}, {2, 3, 4, 5}, 4}, policy, 1.0f, std::move(options));
  EXPECT_EQ(outputs.at("blocks.0.norm1"), DType::kBF16);
  EXPECT_EQ(outputs.at("blocks.0.norm2"), DType::kF16);
  EXPECT_EQ(outputs.at("blocks.0.mlp.up"), DType::kF16);
  EXPECT_EQ(outputs.at("final_norm"), DType::kF32);
  EXPECT_EQ(outputs.at("head"), DType::kF32);
}

}  // namespace
}  // namespace mantissa
