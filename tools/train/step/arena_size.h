// The memory of a training step, which a session must have before its first step. DryRun finds it.
#pragma once

#include <cstddef>

#include "core/kernels/fp8_gemm_support.h"
#include "tools/config/config.h"

namespace mantissa {

// The size of the step arena of a training: of its steps, of evaluation and samples where the configuration has them,
// and of the search for the op that made a loss non-finite.
size_t training_arena_bytes(const Config& config, Fp8GemmSupport support);

}  // namespace mantissa
