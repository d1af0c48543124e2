// A model in a file of its own: blocks whose attention and feed-forward layer stand side by side, as in GPT-J and PaLM
// (Chowdhery et al. 2022, section 2), and a stack of blocks that may run several times with the same weights (Dehghani
// et al. 2018). Shape and precision are settings of the configuration, as for the program's own models.
#include <memory>
#include <string>
#include <vector>

#include "models/layers.h"
#include "models/plugin.h"

namespace {

using namespace mantissa;

struct Block {
  Block(ParameterSet& parameters, int64_t layer, const ModelConfig& config)
      : path("blocks." + std::to_string(layer)),
        norm(parameters, path + ".norm", config),
        attention(parameters, path + ".attention", config, Mask::kCausal, layer),
        mlp(parameters, path + ".mlp", config) {}

  // x (B*T, C), the residual stream.
  Var forward(Tape& tape, const Var& x, int64_t sequence_length) const {
    const Tape::LayerGuard guard(tape, path);
    const int64_t samples = x.value.dim(0) / sequence_length;
    const Var normed = norm_of(tape, "norm", norm, x, linear_input_dtype(tape, "mlp.up"));
    const Var mixed = attention.forward(tape, normed, sequence_length);
    return add(tape, x, add(tape, mixed, mlp.forward(tape, normed, samples)));
  }

  // The norm of x in the layer `name`, in the dtype of the op that reads it.
  static Var norm_of(Tape& tape, const char* name, const Norm& norm, const Var& x, DType out) {
    const Tape::LayerGuard guard(tape, name);
    return norm.forward(tape, {.a = x}, out).normed;
  }

  std::string path;
  Norm norm;
  SelfAttention attention;
  FeedForward mlp;
};

class Parallel final : public Model {
 public:
  Parallel(const ModelConfig& config, ParameterSet& parameters)
      : config_(config), rounds_(static_cast<int>(config_.option("rounds", 1))), embedding_(parameters, config_) {
    blocks_.reserve(static_cast<size_t>(config_.layers));
    for (int64_t layer = 0; layer < config_.layers; ++layer) blocks_.emplace_back(parameters, layer, config_);
    final_norm_ = std::make_unique<Norm>(parameters, "final_norm", config_);
    head_ = std::make_unique<Head>(parameters, config_, embedding_);
  }

  Objective objective() const override { return Objective::kNextToken; }

  Var hidden(Tape& tape, const Tensor& tokens, int64_t sequence_length) override {
    Var x = embedding_.forward(tape, tokens, sequence_length);
    for (int round = 0; round < rounds_; ++round) {
      for (const Block& block : blocks_) x = block.forward(tape, x, sequence_length);
    }
    return Block::norm_of(tape, "final_norm", *final_norm_, x, linear_input_dtype(tape, "head"));
  }

  Var head(Tape& tape, const Var& hidden) override { return head_->forward(tape, hidden); }

  LossOutput loss(Tape& tape, const Tensor& tokens, const Tensor& targets, int64_t sequence_length) override {
    return head_->loss(tape, hidden(tape, tokens, sequence_length), targets);
  }

 private:
  const ModelConfig config_;  // layers refer to it
  int rounds_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  std::unique_ptr<Norm> final_norm_;
  std::unique_ptr<Head> head_;
};

// The name of model.name, and the settings that model.options may give.
const bool kRegistered = register_model(
    "parallel",
    [](const ModelConfig& config, ParameterSet& parameters) { return std::make_unique<Parallel>(config, parameters); },
    {"rounds"});

}  // namespace
