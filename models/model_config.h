// ModelConfig: the shape of a transformer, plain data shared by all models of the registry.
#pragma once

#include <cstdint>
#include <string>

#include "core/ops/activation.h"

namespace mantissa {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };
enum class Position : uint8_t { kLearned, kRope };

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

}  // namespace mantissa
