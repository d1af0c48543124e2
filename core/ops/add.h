// add: the residual connection.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// a + b, equal shapes; the sum is fp32, rounded once to the dtype that the layer's precision gives to add (by default
// the widest input, which keeps a residual stream in fp32).
Var add(Tape& tape, const Var& a, const Var& b);

}  // namespace mantissa
