// Settings of precision overrides: ops and what they may be set to.
#pragma once

#include <optional>

#include "core/io/config_reader.h"
#include "tools/config/config.h"

namespace mantissa {

// "none" for nothing, else a recipe.
ScalarField optional_recipe_field(std::optional<Recipe>& target);
// "any" for nothing.
ScalarField optional_product_field(std::optional<Product>& target);
ScalarField optional_role_field(std::optional<Role>& target);
// "auto" for nothing, else a rule, a dtype or a recipe.
ScalarField optional_op_setting_field(std::optional<OpSetting>& target);
ScalarField fp32_products_field(Fp32Products& target);
// "auto" for nothing.
ScalarField optional_fp32_products_field(std::optional<Fp32Products>& target);
// "any" for nothing.
ScalarField optional_op_field(std::optional<Op>& target);
ScalarField op_field(Op& target);

}  // namespace mantissa
