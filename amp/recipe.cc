#include "amp/recipe.h"

namespace mantissa {

TensorFormat format_for(Recipe recipe, Role role) {
  if (recipe.format) return {*recipe.format, recipe.scaling};
  if (recipe.scaling == Scaling::kTwoLevel) return {Format::kE2M1, recipe.scaling};
  const bool one_scale = block_length(recipe.scaling) == 0;
  return {one_scale && role == Role::kGradient ? Format::kE5M2 : Format::kE4M3, recipe.scaling};
}

std::string name(Recipe recipe) {
  std::string text(name(recipe.scaling));
  if (recipe.format) text += ":" + std::string(info(*recipe.format).name);
  return text;
}

std::optional<Recipe> parse_recipe(std::string_view text) {
  const size_t colon = text.find(':');
  for (const Scaling scaling : kAllScalings) {
    if (name(scaling) != text.substr(0, colon)) continue;
    if (colon == std::string_view::npos) return Recipe{.scaling = scaling, .format = std::nullopt};
    for (const Format format : kAllFormats) {
      const bool is_named = info(format).name == text.substr(colon + 1);
      if (is_named && refusal({format, scaling}).empty()) return Recipe{.scaling = scaling, .format = format};
    }
  }
  return std::nullopt;
}

}  // namespace mantissa
