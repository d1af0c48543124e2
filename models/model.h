// Model: registers its parameters and runs a forward pass. Ops compute the derivatives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd/tape.h"
#include "core/ops/cross_entropy.h"
#include "models/model_config.h"

namespace mantissa {

class Model {
 public:
  virtual ~Model() = default;

  // The task that the model learns.
  virtual Objective objective() const = 0;
  // tokens (B*T) i32 in sequences of `sequence_length` <= context. Returns the head's input (B*T, width).
  virtual Var hidden(Tape& tape, const Tensor& tokens, int64_t sequence_length) = 0;
  // Logits (R, vocab) of hidden (R, width), without ModelConfig::logit_softcap, which the loss applies.
  virtual Var head(Tape& tape, const Var& hidden) = 0;
  // Logits (B*T, vocab) of all positions.
  Var logits(Tape& tape, const Tensor& tokens, int64_t sequence_length) {
    return head(tape, hidden(tape, tokens, sequence_length));
  }
  // Summed cross-entropy of targets (B*T) i32, see cross_entropy(). Computes logits of a large vocabulary in chunks.
  virtual LossOutput loss(Tape& tape, const Tensor& tokens, const Tensor& targets, int64_t sequence_length) = 0;
};

using ModelFactory = std::function<std::unique_ptr<Model>(const ModelConfig& config, ParameterSet& parameters)>;
// `options`: the names that model.options may give this model. False, with nothing changed, if the name is taken.
bool register_model(const std::string& name, ModelFactory factory, std::vector<std::string> options = {});

// Registers the model's parameters in order of use; with config.lora, all but those of adapters are frozen. Loads
// config.plugin first. ConfigError naming all models for an unknown config.name, naming the model's options for an
// unknown option, and as load_plugin() and freeze_base().
std::unique_ptr<Model> create_model(const ModelConfig& config, ParameterSet& parameters);
std::vector<std::string> model_names();

// --- continuing a text

// ConfigError if the model does not predict the next token.
void require_causal(const Model& model, const ModelConfig& config);

// The number of positions computed for a text of `length` tokens: a multiple of 64, at most `context`. Devices prepare
// for each shape, down to timed kernel choices; this way they prepare for few lengths.
int64_t padded_length(int64_t length, int64_t context);

// (R, vocab) fp32: the logits after each of `tokens` (R) i32, which continue texts in the cache of `tape`
// (core/ops/attention.h, CachedPass::kStep).
inline Tensor continued_logits(Tape& tape, Model& model, const Tensor& tokens) {
  return tape.cast(model.logits(tape, tokens, 1).value, DType::kF32);
}

// (vocab) fp32: the logits of the token after the first `length` of `tokens`. `tokens` holds at least padded_length();
// no position of the text sees its padding. `tape` must be for evaluation: other positions would take no gradient.
Tensor next_logits(Tape& tape, Model& model, const Tensor& tokens, int64_t length, const ModelConfig& config);

// --- models from shared libraries outside of the program (models/plugin.h)

// Stands in every program and library that has the registry of models. A plugin must not have it.
#define MANTISSA_REGISTRY_MARK "mantissa registry of models"

// Hash of the file's bytes, 16 hex digits. ConfigError, as all errors here beginning with "model.plugin", if it cannot
// be read.
std::string plugin_digest(const std::string& path);

// Loads the plugin for the life of the process, unless it is loaded already: it registers its models. `digest`:
// plugin_digest() of the file when the run started; empty: any. ConfigError, before anything of the file has run, if it
// is missing or has changed, is not a plugin, belongs to another version or compiler, or has a copy of our library in
// it. ConfigError also if it cannot be loaded, or registers no model.
void load_plugin(const std::string& path, const std::string& digest);

}  // namespace mantissa
