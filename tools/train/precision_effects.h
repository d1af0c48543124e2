// Settings of linear layers' products that have no effect on the model.
#pragma once

#include "tools/config/config.h"

namespace mantissa {

// MeaninglessSettings naming a recipe, an override or a setting of delayed scaling that changes no operand of any
// linear layer, or fp32_products that change no product: who wrote it believes that it does. Walks the model.
void require_effects(const Config& config);

}  // namespace mantissa
