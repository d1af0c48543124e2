// Model: registers its parameters and runs a forward pass. Derivatives are the ops' business.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd/tape.h"
#include "core/ops/cross_entropy.h"
#include "models/model_config.h"

namespace mantissa {

// What a model learns to predict, which decides how targets are made from text.
enum class Objective : uint8_t {
  kNextToken,    // causal models: the target of a position is the next token
  kMaskedToken,  // bidirectional models: targets are the tokens hidden behind the mask token, others are ignored
};

class Model {
 public:
  virtual ~Model() = default;

  virtual Objective objective() const = 0;
  // tokens (B*T) i32 in sequences of `sequence_length` <= context. Returns what the head reads, (B*T, width).
  virtual Var hidden(Tape& tape, const Tensor& tokens, int64_t sequence_length) = 0;
  // Logits (R, vocab) of hidden (R, width).
  virtual Var head(Tape& tape, const Var& hidden) = 0;
  // Logits (B*T, vocab) of all positions.
  Var logits(Tape& tape, const Tensor& tokens, int64_t sequence_length) {
    return head(tape, hidden(tape, tokens, sequence_length));
  }
  // Summed cross-entropy of targets (B*T) i32, see cross_entropy(). Logits of a large vocabulary are made by chunks.
  virtual LossOutput loss(Tape& tape, const Tensor& tokens, const Tensor& targets, int64_t sequence_length) = 0;
};

// Multiply-adds count twice. Forward and backward of one token: 6 * (parameters in matrix products) + 12 * layers *
// context * width, without a discount for the causal mask (the convention of PaLM's appendix B).
double training_flops_per_token(const ModelConfig& config);

using ModelFactory = std::function<std::unique_ptr<Model>(const ModelConfig& config, ParameterSet& parameters)>;
bool register_model(const std::string& name, ModelFactory factory);
// Registers the model's parameters in order of use. ConfigError naming the models that exist if there is none of
// config.name.
std::unique_ptr<Model> create_model(const ModelConfig& config, ParameterSet& parameters);
std::vector<std::string> model_names();

}  // namespace mantissa
