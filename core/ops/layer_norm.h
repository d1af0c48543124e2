// layer_norm: (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis (Ba, Kiros, Hinton 2016).
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// x (R, C); weight (C); bias (C) or nullptr. Statistics and arithmetic are fp32. The result (R, C) is rounded once to
// `out`: a model names the dtype that the only consumer computes in, which gives the same values as an fp32 result that
// the consumer casts, without storing it twice.
Var layer_norm(Tape& tape, Var x, Parameter& weight, Parameter* bias, float epsilon, DType out);

}  // namespace mantissa
