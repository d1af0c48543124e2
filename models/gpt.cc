// A pre-norm decoder with a causal mask: GPT-2 (Radford et al. 2019), and by its configuration Llama, Qwen, SmolLM,
// Mistral and others that Hugging Face's transformers names (tools/model/exchange).
#include "models/layers.h"
#include "models/model.h"

namespace mantissa {
namespace {

class Gpt final : public Model {
 public:
  Gpt(const ModelConfig& config, ParameterSet& parameters) : config_(config), embedding_(parameters, config_) {
    blocks_.reserve(static_cast<size_t>(config_.layers));
    for (int64_t layer = 0; layer < config_.layers; ++layer) blocks_.emplace_back(parameters, layer, config_);
    final_norm_ = std::make_unique<Norm>(parameters, "final_norm", config_);
    head_ = std::make_unique<Head>(parameters, config_, embedding_);
  }

  Objective objective() const override { return Objective::kNextToken; }

  Var hidden(Tape& tape, const Tensor& tokens, int64_t sequence_length) override {
    // The residual stream (B*T, C), fp32 by default. The norm that reads a sum also computes it.
    DeferredSum x{.a = embedding_.forward(tape, tokens, sequence_length)};
    for (const Block& block : blocks_) {
      if (tape.recomputes()) {
        x = {.a = tape.recompute(std::move(x.a), [&block, sequence_length](Tape& t, Var stream) {
          // Computes the last addition here as well: a recomputed block keeps only its input.
          return add(t, block.forward(t, {.a = std::move(stream)}, sequence_length));
        })};
      } else {
        x = block.forward(tape, std::move(x), sequence_length);
      }
    }
    const DType head_input = linear_input_dtype(tape, "head");
    const Tape::LayerGuard guard(tape, "final_norm");
    return final_norm_->forward(tape, std::move(x), head_input).normed;
  }

  Var head(Tape& tape, const Var& hidden) override { return head_->forward(tape, hidden); }

  LossOutput loss(Tape& tape, const Tensor& tokens, const Tensor& targets, int64_t sequence_length) override {
    return head_->loss(tape, hidden(tape, tokens, sequence_length), targets);
  }

 private:
  struct Block {
    Block(ParameterSet& parameters, int64_t layer, const ModelConfig& config)
        : path("blocks." + std::to_string(layer)),
          norm1(parameters, path + ".norm1", config),
          attention(parameters, path + ".attention", config, Mask::kCausal, layer),
          norm2(parameters, path + ".norm2", config),
          mlp(parameters, path + ".mlp", config) {}

    DeferredSum forward(Tape& tape, DeferredSum x, int64_t sequence_length) const {
      const Tape::LayerGuard guard(tape, path);
      const int64_t samples = x.a.value.dim(0) / sequence_length;
      NormedSum at = normed(tape, "norm1", norm1, std::move(x), "attention.qkv");
      x = defer_add(tape, std::move(at.sum), attention.forward(tape, std::move(at.normed), sequence_length));
      at = normed(tape, "norm2", norm2, std::move(x), "mlp.up");
      return defer_add(tape, std::move(at.sum), mlp.forward(tape, std::move(at.normed), samples));
    }

    static NormedSum normed(Tape& tape, const char* name, const Norm& norm, DeferredSum x, const char* consumer) {
      const DType out = linear_input_dtype(tape, consumer);
      const Tape::LayerGuard guard(tape, name);
      return norm.forward(tape, std::move(x), out);
    }

    std::string path;
    Norm norm1;
    SelfAttention attention;
    Norm norm2;
    FeedForward mlp;
  };

  const ModelConfig config_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  std::unique_ptr<Norm> final_norm_;
  std::unique_ptr<Head> head_;
};

const bool kGptRegistered = register_model("gpt", [](const ModelConfig& config, ParameterSet& parameters) {
  return std::make_unique<Gpt>(config, parameters);
});

}  // namespace
}  // namespace mantissa
