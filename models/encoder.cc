// The encoder of the original Transformer (Vaswani et al. 2017): post-norm blocks, bidirectional attention, and a head
// that predicts masked tokens (Devlin et al. 2019).
#include "models/layers.h"
#include "models/model.h"

namespace mantissa {
namespace {

class Encoder final : public Model {
 public:
  Encoder(const ModelConfig& config, ParameterSet& parameters) : config_(config), embedding_(parameters, config_) {
    blocks_.reserve(static_cast<size_t>(config_.layers));
    for (int64_t layer = 0; layer < config_.layers; ++layer) blocks_.emplace_back(parameters, layer, config_);
    head_ = std::make_unique<Head>(parameters, config_, embedding_);
  }

  Objective objective() const override { return Objective::kMaskedToken; }

  Var hidden(Tape& tape, const Tensor& tokens, int64_t sequence_length) override {
    Var x = embedding_.forward(tape, tokens, sequence_length);  // (B*T, C)
    for (const Block& block : blocks_) {
      x = tape.recompute(std::move(x), [&block, sequence_length](Tape& t, Var stream) {
        return block.forward(t, std::move(stream), sequence_length);
      });
    }
    return x;
  }

  Var head(Tape& tape, const Var& hidden) override { return head_->forward(tape, hidden); }

  LossOutput loss(Tape& tape, const Tensor& tokens, const Tensor& targets, int64_t sequence_length) override {
    return head_->loss(tape, hidden(tape, tokens, sequence_length), targets);
  }

 private:
  struct Block {
    Block(ParameterSet& parameters, int64_t layer, const ModelConfig& config)
        : path("blocks." + std::to_string(layer)),
          attention(parameters, path + ".attention", config, Mask::kNone, layer),
          norm1(parameters, path + ".norm1", config),
          mlp(parameters, path + ".mlp", config),
          norm2(parameters, path + ".norm2", config) {}

    // x = norm(x + branch(x)): the norm's result is the residual stream, so it stays in fp32,
    // or fp64.
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

  const ModelConfig config_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  std::unique_ptr<Head> head_;
};

const bool kEncoderRegistered = register_model("encoder", [](const ModelConfig& config, ParameterSet& parameters) {
  return std::make_unique<Encoder>(config, parameters);
});

}  // namespace
}  // namespace mantissa
