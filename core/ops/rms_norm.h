// rms_norm: x / sqrt(mean(x^2) + epsilon) * weight over the last axis (Zhang & Sennrich 2019).
#pragma once

#include "core/ops/add.h"

namespace mantissa {

// x (R, C); weight (C). fp32 arithmetic; the result (R, C) is rounded once to `out` (see layer_norm.h).
Var rms_norm(Tape& tape, Var x, Parameter& weight, float epsilon, DType out);

// rms_norm(x.a + x.b) and the sum, like add_layer_norm().
NormedSum add_rms_norm(Tape& tape, DeferredSum x, Parameter& weight, float epsilon, DType out);

}  // namespace mantissa
