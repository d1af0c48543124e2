// The parts of transformer models: norm, self-attention, feed-forward, embedding and head. Forward code only.
#pragma once

#include "core/autograd/tape.h"
#include "core/kernels/attention/args.h"
#include "core/ops/add.h"
#include "core/ops/cross_entropy.h"
#include "models/model.h"

namespace mantissa {

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
