// LoRA (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021): trained low-rank adapters beside the
// frozen weights of linear layers, y = W x + alpha / rank * B A dropout(x).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/autograd/tape.h"
#include "core/ops/linear.h"
#include "models/model_config.h"

namespace mantissa {

// A projection, by its name in Hugging Face's Llama, and its rows of the weight of the layer that holds it.
struct Projection {
  const char* name;  // "q_proj"
  int64_t rows;
};

class LoraAdapters {
 public:
  LoraAdapters() = default;
  // Registers adapters of the chosen projections. The layer's projections lie in this order in its weight (N, K). A has
  // the initial values of PEFT: uniform within 1 / sqrt(K) (He et al. with a = sqrt(5)); B has zeros.
  LoraAdapters(ParameterSet& parameters, const std::string& layer, int64_t inputs,
               const std::vector<Projection>& projections, const LoraConfig& config);

  bool empty() const { return adapters_.empty(); }
  // y (R, N) plus what the adapters make of x (R, K), of `samples` sequences. The tape is in the layer.
  Var add_to(Tape& tape, Var y, const Var& x, int64_t samples) const;

 private:
  struct Adapter {
    std::string name;
    LowRankMatrices matrices;
  };
  std::vector<Adapter> adapters_;
  float dropout_ = 0.0f;
};

// The layer and projection whose adapter has this parameter; std::nullopt: it is none's.
struct AdapterPlace {
  std::string layer;       // "blocks.0.attention.qkv"
  std::string projection;  // "q_proj"
};
std::optional<AdapterPlace> adapter_place(const Parameter& parameter);
// The adapter's matrices among the parameters: A is `<layer>.<projection>.lora_a.weight`, B the same with lora_b.
std::string adapter_name(const AdapterPlace& place, std::string_view matrix);

// Freezes all parameters but those of adapters. ConfigError for a pattern that selects nothing, with the names there
// are.
void freeze_base(ParameterSet& parameters, const LoraConfig& config);

}  // namespace mantissa
