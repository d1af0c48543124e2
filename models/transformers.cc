// The models of the registry. "gpt": a pre-norm decoder with a causal mask, GPT-2 (Radford et al. 2019), and by its
// configuration Llama, Qwen, SmolLM, Mistral and others that Hugging Face's transformers names (tools/model/exchange).
// "encoder": that of the original Transformer (Vaswani et al. 2017), with post-norm blocks, bidirectional attention,
// and a head that predicts masked tokens (Devlin et al. 2019).
#include "models/layers.h"
#include "models/model.h"

namespace mantissa {
namespace {

// Embedding, blocks and head. A class of its own makes the head, after its last parameter.
template <typename Block>
class Transformer : public Model {
 public:
  Transformer(const ModelConfig& config, ParameterSet& parameters) : config_(config), embedding_(parameters, config_) {
    blocks_.reserve(static_cast<size_t>(config_.layers));
    for (int64_t layer = 0; layer < config_.layers; ++layer) blocks_.emplace_back(parameters, layer, config_);
  }

  Var head(Tape& tape, const Var& hidden) override { return head_->forward(tape, hidden); }

  LossOutput loss(Tape& tape, const Tensor& tokens, const Tensor& targets, int64_t sequence_length) override {
    return head_->loss(tape, hidden(tape, tokens, sequence_length), targets);
  }

 protected:
  const ModelConfig config_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  std::unique_ptr<Head> head_;
};

struct GptBlock {
  GptBlock(ParameterSet& parameters, int64_t layer, const ModelConfig& config)
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

class Gpt final : public Transformer<GptBlock> {
 public:
  Gpt(const ModelConfig& config, ParameterSet& parameters)
      : Transformer(config, parameters), final_norm_(parameters, "final_norm", config_) {
    head_ = std::make_unique<Head>(parameters, config_, embedding_);
  }

  Objective objective() const override { return Objective::kNextToken; }

  Var hidden(Tape& tape, const Tensor& tokens, int64_t sequence_length) override {
    // The residual stream (B*T, C), fp32 by default. The norm that reads a sum also computes it.
    DeferredSum x{.a = embedding_.forward(tape, tokens, sequence_length)};
    for (const GptBlock& block : blocks_) {
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
    return final_norm_.forward(tape, std::move(x), head_input).normed;
  }

 private:
  Norm final_norm_;
};

struct EncoderBlock {
  EncoderBlock(ParameterSet& parameters, int64_t layer, const ModelConfig& config)
      : path("blocks." + std::to_string(layer)),
        attention(parameters, path + ".attention", config, Mask::kNone, layer),
        norm1(parameters, path + ".norm1", config),
        mlp(parameters, path + ".mlp", config),
        norm2(parameters, path + ".norm2", config) {}

  // x = norm(x + branch(x)): the norm's result is the residual stream, so it stays in fp32, or fp64.
  Var forward(Tape& tape, Var x, int64_t sequence_length) const {
    const Tape::LayerGuard guard(tape, path);
    const int64_t samples = x.value.dim(0) / sequence_length;
    Var branch = attention.forward(tape, x, sequence_length);
    x = normed(tape, "norm1", norm1, defer_add(tape, std::move(x), std::move(branch)));
    branch = mlp.forward(tape, x, samples);
    return normed(tape, "norm2", norm2, defer_add(tape, std::move(x), std::move(branch)));
  }

  static Var normed(Tape& tape, const char* name, const Norm& norm, DeferredSum x) {
    const Tape::LayerGuard guard(tape, name);
    const DType wide = tape.compute_dtype(Op::kLayerNorm, DType::kF32, DType::kF32);
    return norm.forward(tape, std::move(x), wide).normed;
  }

  std::string path;
  SelfAttention attention;
  Norm norm1;
  FeedForward mlp;
  Norm norm2;
};

class Encoder final : public Transformer<EncoderBlock> {
 public:
  Encoder(const ModelConfig& config, ParameterSet& parameters) : Transformer(config, parameters) {
    head_ = std::make_unique<Head>(parameters, config_, embedding_);
  }

  Objective objective() const override { return Objective::kMaskedToken; }

  Var hidden(Tape& tape, const Tensor& tokens, int64_t sequence_length) override {
    Var x = embedding_.forward(tape, tokens, sequence_length);  // (B*T, C)
    for (const EncoderBlock& block : blocks_) {
      x = tape.recompute(std::move(x), [&block, sequence_length](Tape& t, Var stream) {
        return block.forward(t, std::move(stream), sequence_length);
      });
    }
    return x;
  }
};

template <typename Kind>
std::unique_ptr<Model> make(const ModelConfig& config, ParameterSet& parameters) {
  return std::make_unique<Kind>(config, parameters);
}
const bool kRegistered = register_model("gpt", make<Gpt>) && register_model("encoder", make<Encoder>);

}  // namespace
}  // namespace mantissa
