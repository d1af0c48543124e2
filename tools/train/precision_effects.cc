#include "tools/train/precision_effects.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "tools/train/step_memory.h"

namespace mantissa {
namespace {

using Layers = std::vector<std::string>;

Layers linear_layers(const Config& config) {
  Layers layers;
  for (const PlacedOp& placed : ops_of(config)) {
    if (placed.op == Op::kLinear) layers.push_back(placed.layer);
  }
  return layers;
}

std::vector<LinearFormats> formats_of(const AutocastConfig& autocast, const Layers& layers) {
  const AutocastPolicy policy(autocast);
  std::vector<LinearFormats> formats;
  for (const std::string& layer : layers) formats.push_back(policy.at(layer).linear);
  return formats;
}

bool is_about_operands(const LayerOverride& layer) {
  return layer.names_operands() || std::holds_alternative<Recipe>(layer.setting);
}

}  // namespace

void require_effects(const Config& config) {
  const PrecisionConfig& precision = config.precision;
  const Layers layers = linear_layers(config);
  const AutocastConfig given = config.autocast();
  const auto found = formats_of(given, layers);
  if (precision.recipe) {
    AutocastConfig without = given;
    without.recipe.reset();
    if (formats_of(without, layers) == found) {
      throw ConfigError(fmt::format(
          "precision.recipe = {} has no effect: precision.ops.linear or precision.layers decide about every linear "
          "layer; remove one of them",
          name(*precision.recipe)));
    }
  }
  const size_t of_pattern = given.layers.size() - precision.layers.size();
  for (size_t i = 0; i < precision.layers.size(); ++i) {
    if (!is_about_operands(precision.layers[i])) continue;
    AutocastConfig without = given;
    without.layers.erase(without.layers.begin() + static_cast<int64_t>(of_pattern + i));
    if (formats_of(without, layers) != found) continue;
    throw ConfigError(fmt::format(
        "precision.layers[{}], which matches '{}', changes no operand: linear layers are named like 'blocks.0.mlp.up', "
        "'blocks.*.attention.qkv' or 'head', and more specific settings win (see precision.layers in "
        "configs/reference.yaml); remove it, or make it more specific",
        i, precision.layers[i].pattern));
  }
  const bool scales_so =
      std::any_of(found.begin(), found.end(), [](const LinearFormats& f) { return f.uses(Scaling::kDelayed); });
  if (precision.delayed != DelayedScalingOptions() && !scales_so) {
    throw ConfigError(
        "precision.delayed has no meaning where nothing is scaled so: remove it, or set precision.recipe=delayed");
  }
}

}  // namespace mantissa
