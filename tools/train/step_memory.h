// What one micro-batch needs beyond the training state, learnt by walking it through the model without computing.
#pragma once

#include <cstddef>

#include "amp/autocast_policy.h"
#include "models/model.h"
#include "tools/config/config.h"

namespace mantissa {

struct StepMemory {
  size_t activations = 0;  // peak of the arena: activations, their gradients and temporaries
  size_t casts = 0;        // low-precision copies of weights that are kept in another dtype
};

// Exact for any model and precision; touches no memory. ConfigError if a pattern of precision.layers matches no layer
// that the walk met.
StepMemory walk_step(const Config& config);

// Registers the model's parameters and gives each its working dtype. Allocates nothing.
std::unique_ptr<Model> make_model(const Config& config, const AutocastPolicy& policy, ParameterSet& parameters);

}  // namespace mantissa
