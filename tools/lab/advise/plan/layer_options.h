// What can be chosen for each layer of a model.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/advise/plan/plan_places.h"

namespace mantissa {

// ConfigError for a text that is no recipe that a plan can use.
void require_recipes(const std::vector<std::string>& recipes);

// fp32 and `low`, which is bf16 or fp16, for every layer, and for linear layers each recipe in each set of products
// that the layer's sizes allow. ConfigError as require_recipes().
std::vector<PlannedPlace> planned_layers(const Config& config, DType low, const std::vector<std::string>& recipes);

}  // namespace mantissa
