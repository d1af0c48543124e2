#include "tools/train/precision_effects.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/meaningless_settings.h"
#include "tools/train/dry_run.h"

namespace mantissa {
namespace {

using Layers = std::vector<PlacedOp>;

Layers linear_layers(const Config& config) {
  Layers layers;
  for (const PlacedOp& placed : ops_of(config)) {
    if (placed.op == Op::kLinear) layers.push_back(placed);
  }
  return layers;
}

std::vector<LinearFormats> formats_of(const AutocastConfig& autocast, const Layers& layers) {
  const AutocastPolicy policy(autocast);
  std::vector<LinearFormats> formats;
  for (const PlacedOp& placed : layers) formats.push_back(policy.at(placed.layer).linear);
  return formats;
}

// Of the layers that multiply fp32 numbers.
std::vector<Fp32Products> products_of(const AutocastConfig& autocast, const Layers& layers) {
  const AutocastPolicy policy(autocast);
  std::vector<Fp32Products> products;
  for (const PlacedOp& placed : layers) {
    if (placed.multiplies_fp32()) products.push_back(policy.at(placed.layer).fp32_products);
  }
  return products;
}

bool is_about_operands(const LayerOverride& layer) {
  return layer.setting && (layer.names_operands() || std::holds_alternative<Recipe>(*layer.setting));
}

void require_effects_of_products(const Config& config, const Layers& layers) {
  const PrecisionConfig& precision = config.precision;
  const AutocastConfig given = config.autocast();
  const auto found = products_of(given, layers);
  if (precision.fp32_products != Fp32Products::kFp32) {
    AutocastConfig without = given;
    without.fp32_products = Fp32Products::kFp32;
    if (products_of(without, layers) == found) {
      throw MeaninglessSettings(
          {"precision.fp32_products"},
          fmt::format("precision.fp32_products = {} has no effect: {}; remove it{}", name(precision.fp32_products),
                      found.empty() ? "no linear layer multiplies fp32 numbers"
                                    : "precision.layers decides about every linear layer that multiplies fp32 numbers",
                      found.empty() ? ", or set precision.compute=fp32" : ""));
    }
  }
  const size_t of_pattern = given.layers.size() - precision.layers.size();
  for (size_t i = 0; i < precision.layers.size(); ++i) {
    if (!precision.layers[i].fp32_products) continue;
    AutocastConfig without = given;
    LayerOverride& layer = without.layers[of_pattern + i];
    layer.fp32_products.reset();
    if (!layer.setting) without.layers.erase(without.layers.begin() + static_cast<int64_t>(of_pattern + i));
    if (products_of(without, layers) != found) continue;
    const std::string element = fmt::format("precision.layers[{}]", i);
    throw MeaninglessSettings({precision.layers[i].setting ? element + ".fp32_products" : element},
                              fmt::format("precision.layers[{}], which matches '{}', has fp32_products without effect: "
                                          "no linear layer that it matches "
                                          "multiplies fp32 numbers, or they are multiplied so without it; remove it, "
                                          "make it more specific, or give the "
                                          "layers dtype: fp32",
                                          i, precision.layers[i].pattern));
  }
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
      throw MeaninglessSettings(
          {"precision.recipe"},
          fmt::format(
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
    throw MeaninglessSettings(
        {fmt::format("precision.layers[{}]", i)},
        fmt::format("precision.layers[{}], which matches '{}', changes no operand: linear layers are named like "
                    "'blocks.0.mlp.up', "
                    "'blocks.*.attention.qkv' or 'head', and more specific settings win (see precision.layers in "
                    "configs/reference.yaml); remove it, or make it more specific",
                    i, precision.layers[i].pattern));
  }
  require_effects_of_products(config, layers);
  const bool scales_so =
      std::any_of(found.begin(), found.end(), [](const LinearFormats& f) { return f.uses(Scaling::kDelayed); });
  if (precision.delayed != DelayedScalingOptions() && !scales_so) {
    throw MeaninglessSettings(
        {"precision.delayed"},
        "precision.delayed has no meaning where nothing is scaled so: remove it, or set precision.recipe=delayed");
  }
}

}  // namespace mantissa
