// The parts of transformer models: norm, self-attention, feed-forward, embedding, head and adapters. Forward code only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/autograd/tape.h"
#include "core/kernels/attention/args.h"
#include "core/ops/add.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/linear.h"
#include "models/model.h"

namespace mantissa {

// A projection, by its name in Hugging Face's Llama, and its rows of the weight of the layer that holds it.
struct Projection {
  const char* name;  // "q_proj"
  int64_t rows;
};
// The projections that the weight of a linear layer in a block packs, in order: "blocks.0.attention.qkv". ContractError
// for another layer.
std::vector<Projection> projections_of(const ModelConfig& config, std::string_view layer);

// LoRA (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021): trained low-rank adapters beside the
// frozen weights of linear layers, y = W x + alpha / rank * B A dropout(x).
class LoraAdapters {
 public:
  LoraAdapters() = default;
  // Registers adapters of the chosen projections. The layer's projections lie in this order in its weight (N, K). A has
  // the initial values of PEFT: uniform within 1 / sqrt(K) (He et al. with a = sqrt(5)); B has zeros.
  LoraAdapters(ParameterSet& parameters, const std::string& layer, int64_t inputs,
               const std::vector<Projection>& projections, const LoraConfig& config);

  bool empty() const { return adapters_.empty(); }
  // y (R, N) plus what the adapters make of x (R, K), of `samples` sequences. The tape is in the layer.
  Var add_to(Tape& tape, Var y, const Var& x, int64_t samples) const;

 private:
  struct Adapter {
    std::string name;
    LowRankMatrices matrices;
  };
  std::vector<Adapter> adapters_;
  float dropout_ = 0.0f;
};

// The layer and projection that an adapter belongs to.
struct AdapterPlace {
  std::string layer;       // "blocks.0.attention.qkv"
  std::string projection;  // "q_proj"
};
// The place of the adapter with this parameter; std::nullopt: no adapter has it.
std::optional<AdapterPlace> adapter_place(const Parameter& parameter);
// The adapter's matrices among the parameters: A is `<layer>.<projection>.lora_a.weight`, B the same with lora_b.
std::string adapter_name(const AdapterPlace& place, std::string_view matrix);

// Freezes all parameters but those of adapters. ConfigError for a pattern that selects nothing, with the names there
// are.
void freeze_base(ParameterSet& parameters, const LoraConfig& config);

// Weight (N, K), optional bias (N) and adapters of a linear layer named `path`.
struct LinearParameters {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
  LoraAdapters adapters{};
};

// The dtype to which a linear layer `path` below the tape's current layer casts an fp32 input.
DType linear_input_dtype(Tape& tape, std::string_view path);

// Layer norm or RMS norm, as the configuration says.
class Norm {
 public:
  // Registers the parameters below `path`.
  Norm(ParameterSet& parameters, const std::string& path, const ModelConfig& config);
  // x (R, C), added first if it is deferred. The norm is rounded to `out`, the dtype of its consumer.
  NormedSum forward(Tape& tape, DeferredSum x, DType out) const;

 private:
  NormKind kind_;
  float epsilon_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

// Self-attention with packed projections: out(attention(rope(norm(qkv(x))))), where the model has norm and rope.
class SelfAttention {
 public:
  // `block`: its number among the blocks of the model.
  SelfAttention(ParameterSet& parameters, const std::string& path, const ModelConfig& config, Mask mask, int64_t block);
  // x (B*T, C) of sequences of `sequence_length`.
  Var forward(Tape& tape, Var x, int64_t sequence_length) const;

 private:
  const ModelConfig& config_;
  AttentionShape shape_;  // of a sequence
  bool rotates_;
  LinearParameters qkv_, out_;
  Parameter *query_norm_ = nullptr, *key_norm_ = nullptr;  // (head_dim)
};

// down(activation(up(x))). For swiglu, up also computes the gate, packed in front.
class FeedForward {
 public:
  // Registers the parameters below `path`. The configuration must outlive the object.
  FeedForward(ParameterSet& parameters, const std::string& path, const ModelConfig& config);
  // x (R, C) of `samples` sequences.
  Var forward(Tape& tape, Var x, int64_t samples) const;

 private:
  // down(activation(up(x))).
  Var activation_between(Tape& tape, Var x, int64_t samples) const;
  // The same with gelu fused into the products, if all three compute in one dtype and round no operands.
  Var gelu_between(Tape& tape, Var x) const;

  const ModelConfig& config_;
  LinearParameters up_, down_;
};

// Token embedding, learned positions if configured, and dropout: the start of the residual stream.
class Embedding {
 public:
  // Registers the tables. The configuration must outlive the object.
  Embedding(ParameterSet& parameters, const ModelConfig& config);
  // tokens (B*T) i32 in sequences of `sequence_length`. Returns (B*T, C).
  Var forward(Tape& tape, const Tensor& tokens, int64_t sequence_length) const;
  Parameter& token_table() const { return *tokens_; }

 private:
  const ModelConfig& config_;
  Parameter* tokens_;
  Parameter* positions_ = nullptr;
};

// Logits over the vocabulary. A tied head uses the token embedding.
class Head {
 public:
  // Registers the weight, if it is not tied. The configuration must outlive the object.
  Head(ParameterSet& parameters, const ModelConfig& config, const Embedding& embedding);
  // x (R, C).
  Var forward(Tape& tape, const Var& x) const;
  // Summed cross-entropy of targets (R). Computes large logits (some hundred MB) in chunks of rows, unless the head
  // rounds its operands.
  LossOutput loss(Tape& tape, const Var& x, const Tensor& targets) const;

 private:
  const ModelConfig& config_;
  Parameter* weight_;
};

}  // namespace mantissa
