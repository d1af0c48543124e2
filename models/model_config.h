// ModelConfig: the shape of a transformer. Plain data.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/kernels/activation/records.h"
#include "core/kernels/embedding/rope_frequencies.h"

namespace mantissa {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };
enum class Position : uint8_t { kLearned, kRope };
enum class LinearBias : uint8_t { kAuto, kOn, kOff };  // kAuto: as ModelConfig::bias

// Some blocks of a model, the first is 0: "all", "none" or ranges such as "0-2,4-6,8".
class BlockSelection {
 public:
  // Nothing for any other text.
  static std::optional<BlockSelection> parse(std::string_view text);
  static BlockSelection all() { return {}; }
  // The chosen ones of the blocks 0 to chosen.size() - 1.
  static BlockSelection of(const std::vector<bool>& chosen);

  // Whether the block is one of them.
  bool contains(int64_t block) const;
  bool is_all() const { return is_all_; }
  // The highest named block; -1 for all and for none.
  int64_t last() const { return ranges_.empty() ? -1 : ranges_.back().second; }
  std::string text() const;
  bool operator==(const BlockSelection&) const = default;

 private:
  bool is_all_ = true;
  std::vector<std::pair<int64_t, int64_t>> ranges_{};  // first and last block; ascending
};

// Adapters beside frozen weights (models/layers.h).
struct LoraConfig {
  int64_t rank = 0;                       // 0: none, all weights are trained
  float alpha = 16.0f;                    // adapters are multiplied by alpha / rank
  std::vector<std::string> targets{"*"};  // patterns of linear layers in blocks: selects()
  float dropout = 0.0f;                   // of the adapters' input
  float factor() const { return alpha / static_cast<float>(rank); }
  // Whether a pattern names the projection of the layer: "blocks.0.attention.qkv" and "q_proj".
  static bool selects(std::string_view pattern, std::string_view layer, std::string_view projection);
  bool operator==(const LoraConfig&) const = default;
};

// The shape of a transformer, plain data shared by all models of the registry.
struct ModelConfig {
  std::string name = "gpt";            // registry name: "gpt", "encoder", or a name from the plugin
  std::string plugin{};                // shared library with further models (models/plugin.h); empty: none
  std::string plugin_digest{};         // of that file when the run started; empty: any
  std::vector<std::string> options{};  // settings of a plugin's model, "name=number"
  int64_t layers = 6;
  int64_t width = 384;
  int64_t heads = 6;      // query heads
  int64_t kv_heads = 0;   // key/value heads; divides heads; 0: as many as heads
  int64_t head_dim = 0;   // channels of a head; 0: width / heads, where heads divides width
  int64_t context = 256;  // positions in a training sequence
  int64_t vocab = 256;
  int64_t mlp_width = 0;                    // 0: 4 * width
  bool bias = true;                         // biases of linear layers and of layer norms
  LinearBias qkv_bias = LinearBias::kAuto;  // of the queries', keys' and values' projection
  LinearBias out_bias = LinearBias::kAuto;  // of attention's output projection
  LinearBias mlp_bias = LinearBias::kAuto;  // of the feed-forward layer's projections
  bool tie_head = true;                     // the head uses the token embedding
  float dropout = 0.0f;                     // on the embeddings and on each residual branch
  NormKind norm = NormKind::kLayerNorm;
  float norm_epsilon = 1e-5f;
  Activation activation = Activation::kGeluTanh;
  Position position = Position::kLearned;
  RopeFrequencies rope{};
  BlockSelection rope_blocks{};    // blocks whose attention rotates; the others have no positions (NoPE)
  bool qk_norm = false;            // RMS norm of every query and key head, in front of rope
  int64_t window = 0;              // keys that a query sees, itself included; 0: all before it
  BlockSelection window_blocks{};  // blocks with that window
  float attention_scale = 0.0f;    // of the scores; 0: 1 / sqrt(head_dim)
  float logit_softcap = 0.0f;      // logits are softcap * tanh(logit / softcap); 0: as they are
  float init_stddev = 0.02f;       // of matrices; residual projections get init_stddev / sqrt(2 * layers), as GPT-2
  LoraConfig lora{};

  // The value of an entry of `options`, or the fallback if there is none. ConfigError unless it is a number.
  double option(std::string_view option_name, double fallback) const;
  int64_t resolved_head_dim() const { return head_dim > 0 ? head_dim : width / heads; }
  bool resolved(LinearBias projection) const {
    return projection == LinearBias::kAuto ? bias : projection == LinearBias::kOn;
  }
  // The keys that a query of this block sees; 0: all before it.
  int64_t window_of(int64_t block) const { return window_blocks.contains(block) ? window : 0; }
  // softcap * tanh(logit / softcap), or the logit itself if there is no softcap.
  float capped(float logit) const {
    return logit_softcap > 0.0f ? logit_softcap * std::tanh(logit / logit_softcap) : logit;
  }
  int64_t resolved_kv_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t resolved_mlp_width() const { return mlp_width > 0 ? mlp_width : 4 * width; }
  bool operator==(const ModelConfig&) const = default;
};

// The task that a model learns. Determines how targets are made from text.
enum class Objective : uint8_t {
  kNextToken,    // causal models: the target of a position is the next token
  kMaskedToken,  // bidirectional models: targets are the tokens that the mask token hides; others are ignored
};

// Multiply-adds count twice. Forward and backward of one token: 6 * (parameters in matrix products) + 12 * layers *
// keys * heads * head_dim. Frozen matrices count 4 times, without adapters, which are small. `keys` is the context,
// without a discount for the causal mask (the convention of PaLM's appendix B), or the window where it is less.
double training_flops_per_token(const ModelConfig& config);

}  // namespace mantissa
