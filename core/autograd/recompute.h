// Recompute: which activations a training step keeps for its backward pass. What it does not keep is made again there,
// by the same kernels from the same numbers: losses and gradients do not depend on the choice.
#pragma once

#include <cstdint>

namespace mantissa {

enum class Recompute : uint8_t {
  kNone,       // all of them
  kSelective,  // not those that norms and activation functions make of others that are kept
  kFull,       // only the inputs of segments (Tape::recompute), which are a model's blocks
};

}  // namespace mantissa
