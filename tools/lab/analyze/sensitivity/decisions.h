// PrecisionDecision: one part of a model whose precision can be lowered alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

// A linear layer, one of its products, or an attention, with the format to compute in. A dtype applies to everything
// that the op computes, a recipe to the operands of a product.
struct PrecisionDecision {
  std::string layer;  // path: "blocks.1.mlp.up"
  Op op = Op::kLinear;
  std::optional<Product> product{};  // empty: the whole op, in a dtype
  std::string format;                // "bf16", "fp16", or a recipe: "current", "mxfp8", "current:e5m2"

  bool operator==(const PrecisionDecision&) const = default;
};

// Whether it lowers the forward product of a linear layer, alone or with the rest of the layer.
bool lowers_forward_product(const PrecisionDecision& decision);

// "blocks.1.mlp.up fprop current"; for a dtype "blocks.1.mlp.up bf16".
std::string name(const PrecisionDecision& decision);
// "blocks.1.mlp.up fprop": without the format.
std::string place(const PrecisionDecision& decision);

// The reference of lowered passes: the configuration in fp32 throughout, including masters, moments and the wire,
// and without precision changes during the run.
Config in_exact_precision(const Config& config);

// All decisions that `formats` allow in the configuration's model, layer by layer: a dtype for each linear layer and
// attention, a recipe for each product of the linear layers. `layers` is a pattern (LayerPattern) for their paths, "**"
// for all. ConfigError for an unknown format, and if nothing matches.
std::vector<PrecisionDecision> decisions_of(const Config& config, const std::vector<std::string>& formats,
                                            const std::string& layers);

// The decisions that a training in this format throughout makes together: a recipe leaves the head in 16 bits.
std::vector<PrecisionDecision> lowered_throughout(const Config& config, const std::string& format);

// `exact` with one decision lowered.
Config lowered(Config exact, const PrecisionDecision& decision);

}  // namespace mantissa
