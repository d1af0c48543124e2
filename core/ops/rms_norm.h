// rms_norm: x / sqrt(mean(x^2) + epsilon) * weight over the last axis (Zhang & Sennrich 2019).
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// x (R, C); weight (C). fp32 arithmetic; the result (R, C) is rounded once to `out` (see layer_norm.h).
Var rms_norm(Tape& tape, Var x, Parameter& weight, float epsilon, DType out);

}  // namespace mantissa
