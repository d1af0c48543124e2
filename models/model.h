// Model: registers its parameters and runs a forward pass. Ops compute the derivatives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd/tape.h"
#include "core/ops/activation.h"
#include "core/ops/cross_entropy.h"

namespace mantissa {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };
enum class Position : uint8_t { kLearned, kRope };

// The shape of a transformer, plain data shared by all models of the registry.
struct ModelConfig {
  std::string name = "gpt";  // registry name: "gpt", "encoder"
  int64_t layers = 6;
  int64_t width = 384;
  int64_t heads = 6;      // query heads; divides width
  int64_t kv_heads = 0;   // key/value heads; divides heads; 0: as many as heads
  int64_t context = 256;  // positions in a training sequence
  int64_t vocab = 256;
  int64_t mlp_width = 0;  // 0: 4 * width
  bool bias = true;       // biases of linear layers and of layer norms
  bool tie_head = true;   // the head uses the token embedding
  float dropout = 0.0f;   // on the embeddings and on each residual branch
  NormKind norm = NormKind::kLayerNorm;
  float norm_epsilon = 1e-5f;
  Activation activation = Activation::kGeluTanh;
  Position position = Position::kLearned;
  float rope_base = 10000.0f;
  float init_stddev = 0.02f;  // of matrices; residual projections get init_stddev / sqrt(2 * layers), as GPT-2

  int64_t head_dim() const { return width / heads; }
  int64_t resolved_kv_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t resolved_mlp_width() const { return mlp_width > 0 ? mlp_width : 4 * width; }
  bool operator==(const ModelConfig&) const = default;
};

// The task that a model learns. Determines how targets are made from text.
enum class Objective : uint8_t {
  kNextToken,    // causal models: the target of a position is the next token
  kMaskedToken,  // bidirectional models: targets are the tokens that the mask token hides; others are ignored
};

class Model {
 public:
  virtual ~Model() = default;

  virtual Objective objective() const = 0;
  // tokens (B*T) i32 in sequences of `sequence_length` <= context. Returns the head's input (B*T, width).
  virtual Var hidden(Tape& tape, const Tensor& tokens, int64_t sequence_length) = 0;
  // Logits (R, vocab) of hidden (R, width).
  virtual Var head(Tape& tape, const Var& hidden) = 0;
  // Logits (B*T, vocab) of all positions.
  Var logits(Tape& tape, const Tensor& tokens, int64_t sequence_length) {
    return head(tape, hidden(tape, tokens, sequence_length));
  }
  // Summed cross-entropy of targets (B*T) i32, see cross_entropy(). Computes logits of a large vocabulary in chunks.
  virtual LossOutput loss(Tape& tape, const Tensor& tokens, const Tensor& targets, int64_t sequence_length) = 0;
};

// Multiply-adds count twice. Forward and backward of one token: 6 * (parameters in matrix products) + 12 * layers *
// context * width, without a discount for the causal mask (the convention of PaLM's appendix B).
double training_flops_per_token(const ModelConfig& config);

using ModelFactory = std::function<std::unique_ptr<Model>(const ModelConfig& config, ParameterSet& parameters)>;
bool register_model(const std::string& name, ModelFactory factory);
// Registers the model's parameters in order of use. ConfigError naming all models if config.name is unknown.
std::unique_ptr<Model> create_model(const ModelConfig& config, ParameterSet& parameters);
std::vector<std::string> model_names();

// --- continuing a text

// ConfigError if the model does not predict the next token.
void require_causal(const Model& model, const ModelConfig& config);

// The number of positions computed for a text of `length` tokens: a multiple of 64, at most `context`. Devices prepare
// for each shape, down to timed kernel choices; this way they prepare for few lengths.
int64_t padded_length(int64_t length, int64_t context);

// (vocab) fp32: the logits of the token after the first `length` of `tokens`. `tokens` holds at least padded_length();
// no position of the text sees its padding. `tape` must be for evaluation: other positions would take no gradient.
Tensor next_logits(Tape& tape, Model& model, const Tensor& tokens, int64_t length, const ModelConfig& config);

}  // namespace mantissa
