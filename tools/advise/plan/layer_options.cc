#include "tools/advise/plan/layer_options.h"

#include <fmt/ranges.h>

#include <set>

#include "amp/autocast_policy.h"
#include "core/base/error.h"
#include "core/base/meaningless_settings.h"
#include "tools/experiment/candidates.h"
#include "tools/train/step_memory.h"

namespace mantissa {
namespace {

Recipe require_recipe(const std::string& text) {
  const std::optional<Recipe> recipe = parse_recipe(text);
  if (recipe && recipe->scaling != Scaling::kDelayed) return *recipe;
  throw ConfigError(fmt::format("--recipes: expected some of current, block, mxfp8, nvfp4, got '{}'{}", text,
                                recipe ? ": delayed scaling has no scales in the few steps that damage is measured in; "
                                         "its formats are those of current"
                                       : ""));
}

// Of fewer products before of more: the most exact first.
std::vector<LayerOption> recipe_options(const std::string& text) {
  const Recipe recipe = require_recipe(text);
  std::vector<LayerOption> options;
  for (const int size : {1, 2, 3}) {
    for (unsigned set = 1; set < 8; ++set) {
      LayerOption option{.name = text, .recipe = recipe};
      std::vector<std::string_view> names;
      for (const Product product : kAllProducts) {
        if ((set >> static_cast<unsigned>(product) & 1u) == 0) continue;
        option.products.push_back(product);
        names.push_back(name(product));
      }
      if (static_cast<int>(names.size()) != size) continue;
      if (size < 3) option.name += fmt::format(" in {}", fmt::join(names, ", "));
      options.push_back(std::move(option));
    }
  }
  return options;
}

void apply(const PlannedLayer& layer, const LayerOption& option, std::vector<LayerOverride>& overrides) {
  if (option.compute) {
    overrides.push_back({.pattern = layer.layer, .op = layer.op, .setting = *option.compute});
  } else if (option.recipe && option.products.size() == std::size(kAllProducts)) {
    overrides.push_back({.pattern = layer.layer, .op = layer.op, .setting = *option.recipe});
  } else if (option.recipe) {
    for (const Product product : option.products) {
      overrides.push_back({.pattern = layer.layer, .setting = *option.recipe, .product = product});
    }
  }
}

// Why the model refuses the option; empty where it does not.
std::string refusal(const Config& config, DType low, const PlannedLayer& layer, const LayerOption& option) {
  try {
    PlannedLayer alone{.layer = layer.layer, .op = layer.op, .options = {option}, .refusals = {}};
    walk_step(with_plan(config, low, {alone}, {0}));
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

// What is said of working weights in 16 bits, where the model has none: as where its head and embedding are one weight
// and all linear layers are in fp32.
void leave_out_16_bit_weights(Config& config) {
  AdamWOptions& optimizer = config.optimizer.adamw;
  const bool says_any =
      optimizer.master != MasterWeights::kF32 || optimizer.weight_rounding != WeightRounding::kNearest;
  if (!says_any) return;  // a search makes hundreds of plans, and a model takes time to lay out
  const AutocastPolicy policy(config.autocast());
  ParameterSet parameters;
  try {
    make_model(config, policy, parameters);
  } catch (const MeaninglessSettings&) {
    optimizer.master = MasterWeights::kF32;
    optimizer.weight_rounding = WeightRounding::kNearest;
  }
}

}  // namespace

std::string PlannedLayer::name() const { return op == Op::kAttention ? layer + " attention" : layer; }

void require_recipes(const std::vector<std::string>& recipes) {
  std::set<std::string> met;
  for (const std::string& recipe : recipes) {
    require_recipe(recipe);
    if (!met.insert(recipe).second) {
      throw ConfigError(fmt::format("--recipes: '{}' is there twice: give each once", recipe));
    }
  }
}

std::vector<PlannedLayer> planned_layers(const Config& config, DType low, const std::vector<std::string>& recipes) {
  std::vector<PlannedLayer> layers;
  std::set<std::pair<std::string, Op>> met;
  for (const PlacedOp& op : ops_of(in_exact_precision(config))) {
    if ((op.op != Op::kLinear && op.op != Op::kAttention) || !met.emplace(op.layer, op.op).second) continue;
    PlannedLayer layer{.layer = op.layer, .op = op.op, .options = {}, .refusals = {}};
    layer.options.push_back({.name = std::string(name(DType::kF32)), .compute = DType::kF32});
    layer.options.push_back({.name = std::string(name(low))});
    if (op.op == Op::kLinear) {
      for (const std::string& recipe : recipes) {
        for (LayerOption& option : recipe_options(recipe)) {
          if (const std::string why = refusal(config, low, layer, option); why.empty()) {
            layer.options.push_back(std::move(option));
          } else {
            layer.refusals.push_back(fmt::format("{} {}: {}", layer.name(), option.name, why));
          }
        }
      }
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

Config with_plan(const Config& config, DType low, const std::vector<PlannedLayer>& layers, const Plan& plan,
                 WorkingWeights weights) {
  PrecisionConfig precision;
  precision.compute = low;
  precision.weights = weights;
  for (size_t i = 0; i < layers.size(); ++i) {
    apply(layers[i], layers[i].options[static_cast<size_t>(plan[i])], precision.layers);
  }
  Config planned = in_precision(config, precision);
  leave_out_16_bit_weights(planned);
  return planned;
}

Plan uniform_plan(const std::vector<PlannedLayer>& layers, DType low, const std::string& option) {
  Plan plan;
  for (const PlannedLayer& layer : layers) {
    int place = 0;
    for (const std::string& wanted : {std::string(name(low)), option}) {
      for (size_t i = 0; i < layer.options.size(); ++i) {
        if (layer.options[i].name == wanted) place = static_cast<int>(i);
      }
    }
    plan.push_back(place);
  }
  return plan;
}

std::vector<PrecisionDecision> decisions_of(const PlannedLayer& layer, const LayerOption& option, DType low) {
  if (option.compute) return {};  // fp32
  std::vector<PrecisionDecision> decisions = {{.layer = layer.layer, .op = layer.op, .format = std::string(name(low))}};
  if (!option.recipe) return decisions;
  for (const Product product : option.products) {
    decisions.push_back({.layer = layer.layer, .op = layer.op, .product = product, .format = name(*option.recipe)});
  }
  return decisions;
}

}  // namespace mantissa
