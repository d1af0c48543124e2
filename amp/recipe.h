// Recipe: a scaling and the formats that go with it, as configurations name it: "mxfp8", "delayed:e5m2".
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/autograd/linear_formats.h"

namespace mantissa {

struct Recipe {
  Scaling scaling = Scaling::kCurrent;
  std::optional<Format> format{};  // nothing: the recipe's own for each role
  bool operator==(const Recipe&) const = default;
};

// What an operand of this role is rounded to. The recipes' own formats: e2m1 for nvfp4; of the others e4m3, which has
// the precision, but e5m2 for gradients with one scale a tensor, which need the range.
TensorFormat format_for(Recipe recipe, Role role);

std::string name(Recipe recipe);
// Nothing for any other text, or a format that the recipe has not.
std::optional<Recipe> parse_recipe(std::string_view text);

}  // namespace mantissa
