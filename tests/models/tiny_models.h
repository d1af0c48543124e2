// Models so small that each gradient can be compared with finite differences, with weights and a batch for them.
#pragma once

#include <string>
#include <vector>

#include "core/autograd/parameter.h"
#include "models/model.h"
#include "tests/models/training_pass.h"
#include "tests/testing/values.h"

namespace mantissa::testing {

inline void use_llama_layers(ModelConfig& config) {
  config.bias = false;
  config.tie_head = false;
  config.norm = NormKind::kRmsNorm;
  config.activation = Activation::kSwiglu;
  config.position = Position::kRope;
}

inline ModelConfig tiny_model(const std::string& name) {
  ModelConfig config;
  config.name = name;
  config.layers = 1;
  config.width = 8;
  config.heads = 2;
  config.context = 5;
  config.vocab = 7;
  config.mlp_width = 10;
  return config;
}

inline ModelConfig tiny_gpt() {
  ModelConfig config = tiny_model("gpt");
  config.layers = 2;
  config.dropout = 0.2f;
  return config;
}

inline ModelConfig tiny_llama() {
  ModelConfig config = tiny_model("gpt");
  config.kv_heads = 1;
  use_llama_layers(config);
  return config;
}

// Every option of the decoder that the others leave alone.
inline ModelConfig tiny_decoder() {
  ModelConfig config = tiny_llama();
  config.layers = 2;
  config.head_dim = 6;
  config.qkv_bias = LinearBias::kOn;
  config.rope = {.base = 10.0f, .scaling = RopeScaling::kLlama3, .factor = 2.0f, .original_context = 16};
  config.rope_blocks = *BlockSelection::parse("1");
  config.qk_norm = true;
  config.window = 2;
  config.window_blocks = *BlockSelection::parse("0");
  config.attention_scale = 0.3f;
  config.logit_softcap = 2.0f;
  return config;
}

// Adapters of whole layers and of parts of them.
inline ModelConfig tiny_lora() {
  ModelConfig config = tiny_gpt();
  config.lora = {.rank = 3, .alpha = 4.5f, .targets = {"q_proj", "blocks.1.attention.qkv", "mlp.*"}, .dropout = 0.3f};
  return config;
}

inline ModelConfig tiny_llama_lora() {
  ModelConfig config = tiny_decoder();
  config.lora = {.rank = 2, .alpha = 2.0f, .targets = {"blocks.1.*", "blocks.*.v_proj"}};
  return config;
}

inline ModelConfig tiny_encoder() {
  ModelConfig config = tiny_model("encoder");
  config.activation = Activation::kGeluErf;
  config.dropout = 0.1f;
  return config;
}

// Random; gains of norms are near 1.
inline std::vector<float> tiny_weights(const Parameter& parameter) {
  const bool is_gain = parameter.init.kind == Init::Kind::kOnes;
  const uint64_t seed = 100 + static_cast<uint64_t>(parameter.index);
  std::vector<float> values = normal_values(parameter.numel(), seed, is_gain ? 0.2f : 0.5f);
  if (is_gain) {
    for (float& value : values) value += 1.0f;
  }
  return values;
}

// Three samples of five tokens, some of whose targets are ignored.
inline MicroBatch tiny_batch() {
  MicroBatch batch{random_tokens(15, 7, 1), random_tokens(15, 7, 2), 5};
  for (const size_t ignored : {1u, 7u, 14u}) batch.targets[ignored] = kIgnoreIndex;
  return batch;
}

}  // namespace mantissa::testing
