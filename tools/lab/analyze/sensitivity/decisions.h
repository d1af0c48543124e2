// PrecisionDecision: one thing of a model whose precision can be lowered alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

// A linear layer, one of its products, or an attention, and the format that it would compute in. A dtype is one of
// everything that the op computes; a recipe one of the operands of a product.
struct PrecisionDecision {
  std::string layer;  // path: "blocks.1.mlp.up"
  Op op = Op::kLinear;
  std::optional<Product> product{};  // nothing: all that the op computes, in a dtype
  std::string format;                // "bf16", "fp16", or a recipe: "current", "mxfp8", "current:e5m2"

  bool operator==(const PrecisionDecision&) const = default;
};

// Whether the forward product of a linear layer is lowered, alone or with all that the layer computes.
bool lowers_forward_product(const PrecisionDecision& decision);

// "blocks.1.mlp.up fprop current"; of a dtype "blocks.1.mlp.up bf16".
std::string name(const PrecisionDecision& decision);
// "blocks.1.mlp.up fprop": what is decided about.
std::string place(const PrecisionDecision& decision);

// The configuration in fp32 throughout, with masters and moments in fp32, gradients that travel so, and without what
// changes precision on the way: what lowered ones are compared with.
Config in_exact_precision(const Config& config);

// All decisions of the configuration's model that `formats` allow, layer by layer: for a dtype the linear layers and
// attentions, for a recipe each product of the linear layers. `layers`: a pattern (LayerPattern) that their paths must
// match, "**" for all. ConfigError for a format that is none, and where nothing matches.
std::vector<PrecisionDecision> decisions_of(const Config& config, const std::vector<std::string>& formats,
                                            const std::string& layers);

// `exact` with one thing lowered.
Config lowered(Config exact, const PrecisionDecision& decision);

}  // namespace mantissa
