// Recompute: which activations a training step keeps for its backward pass. The backward pass recomputes the others
// with the same kernels from the same numbers, so losses and gradients do not depend on the choice.
#pragma once

#include <cstdint>

namespace mantissa {

enum class Recompute : uint8_t {
  kNone,       // all of them
  kSelective,  // all but outputs of norms and activation functions, which are recomputed from kept tensors
  kFull,       // only the inputs of segments (Tape::recompute): a model's blocks
};

}  // namespace mantissa
