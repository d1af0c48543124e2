#include "tools/lab/advise/plan/layer_options.h"

#include <fmt/ranges.h>

#include <set>

#include "core/base/error.h"
#include "tools/train/dry_run.h"

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
std::vector<PlaceOption> recipe_options(const std::string& text) {
  const Recipe recipe = require_recipe(text);
  std::vector<PlaceOption> options;
  for (const int size : {1, 2, 3}) {
    for (unsigned set = 1; set < 8; ++set) {
      PlaceOption option{.name = text, .recipe = recipe};
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

// Why the model refuses the option; empty where it does not.
std::string refusal(const Config& config, DType low, const PlannedPlace& layer, const PlaceOption& option) {
  try {
    const PlannedPlace alone{.layer = layer.layer, .op = layer.op, .options = {option}};
    ops_of(with_plan(config, low, {alone}, {0}));
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

}  // namespace

void require_recipes(const std::vector<std::string>& recipes) {
  std::set<std::string> met;
  for (const std::string& recipe : recipes) {
    require_recipe(recipe);
    if (!met.insert(recipe).second) {
      throw ConfigError(fmt::format("--recipes: '{}' is there twice: give each once", recipe));
    }
  }
}

std::vector<PlannedPlace> planned_layers(const Config& config, DType low, const std::vector<std::string>& recipes) {
  std::vector<PlannedPlace> layers;
  std::set<std::pair<std::string, Op>> met;
  for (const PlacedOp& op : ops_of(in_exact_precision(config))) {
    if ((op.op != Op::kLinear && op.op != Op::kAttention) || !met.emplace(op.layer, op.op).second) continue;
    PlannedPlace layer{.layer = op.layer, .op = op.op};
    layer.options.push_back({.name = std::string(name(DType::kF32)), .compute = DType::kF32});
    layer.options.push_back({.name = std::string(name(low))});
    if (op.op == Op::kLinear) {
      for (const std::string& recipe : recipes) {
        for (PlaceOption& option : recipe_options(recipe)) {
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

}  // namespace mantissa
