// What can be chosen for each layer of a model, and the configuration that comes of a choice.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/advise/search/plan_problem.h"
#include "tools/analyze/sensitivity/decisions.h"

namespace mantissa {

// A precision of a layer.
struct LayerOption {
  std::string name;                // "fp32", "bf16", "current", "current in fprop, dgrad"
  std::optional<DType> compute{};  // fp32; nothing: the plan's 16-bit dtype
  std::optional<Recipe> recipe{};  // of these products
  std::vector<Product> products{};
};

// A linear layer or an attention. Options are the most exact first.
struct PlannedLayer {
  std::string layer;
  Op op = Op::kLinear;
  std::vector<LayerOption> options;
  std::vector<std::string> refusals;  // options that the layer's sizes refuse, and why

  std::string name() const;  // "blocks.0.attention attention"
};

// ConfigError for a text that is no recipe that a plan can use.
void require_recipes(const std::vector<std::string>& recipes);

// fp32 and `low`, which is bf16 or fp16, for every layer, and for linear layers each recipe in each set of products
// that the layer's sizes allow. ConfigError as require_recipes().
std::vector<PlannedLayer> planned_layers(const Config& config, DType low, const std::vector<std::string>& recipes);

// The configuration with `low` for all that is not chosen, in place of its own precision, and these options for the
// layers, one each. Settings that mean nothing beside it take their defaults. `weights`: fp32 for passes over the
// weights of a session in in_exact_precision(), which are.
Config with_plan(const Config& config, DType low, const std::vector<PlannedLayer>& layers, const Plan& plan,
                 WorkingWeights weights = WorkingWeights::kLow);

// The options of this name everywhere; where a layer has none of it 16 bits, and without these fp32.
Plan uniform_plan(const std::vector<PlannedLayer>& layers, DType low, const std::string& option);

// What the options of a layer lower, as a sensitivity analysis tries it.
std::vector<PrecisionDecision> decisions_of(const PlannedLayer& layer, const LayerOption& option, DType low);

}  // namespace mantissa
