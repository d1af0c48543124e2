// layer_norm: (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis (Ba, Kiros, Hinton 2016).
#pragma once

#include "core/ops/add.h"

namespace mantissa {

// x (R, C); weight (C); bias (C) or nullptr. Statistics and arithmetic are fp32. The result (R, C) is rounded once to
// `out`: a model names the dtype that the only consumer computes in, which gives the same values as an fp32 result that
// the consumer casts, without storing it twice.
Var layer_norm(Tape& tape, Var x, Parameter& weight, Parameter* bias, float epsilon, DType out);

// layer_norm(x.a + x.b) in one pass over memory, and the sum. Its backward pass adds the norm's gradient to what has
// come for the sum from elsewhere. An x without a b is its own sum.
NormedSum add_layer_norm(Tape& tape, DeferredSum x, Parameter& weight, Parameter* bias, float epsilon, DType out);

}  // namespace mantissa
